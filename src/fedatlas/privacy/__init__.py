"""Privacy mechanisms: what an update looks like to whoever must not see it."""
