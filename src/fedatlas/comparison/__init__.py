"""Keys with several values: `compare` runs every combination with several seeds, `tune` picks one on validation rows."""
