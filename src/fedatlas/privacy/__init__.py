"""Privacy mechanisms: what an update looks like to whoever must not see it, and what was released of it."""
