"""Privacy mechanisms: how updates are hidden from parties that must not see them, and the record of what was released."""
