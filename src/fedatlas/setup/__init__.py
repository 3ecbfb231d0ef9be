"""Turn a configuration into a federation that is ready to run; every refusal happens here."""
