"""Privacy mechanisms: how an update is hidden from those who must not see it, and the record of its releases."""
