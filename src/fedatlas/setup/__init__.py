"""From a configuration to a federation that is ready to run: what is refused is refused here."""
