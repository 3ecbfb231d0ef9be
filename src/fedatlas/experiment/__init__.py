"""From a configuration to a run directory, and what can be made of one."""
