"""From a configuration to a federation that is ready to run; every refusal happens here."""
