"""Privacy mechanisms as pure functions: noise, clipping, what a release costs, and the ledger of releases."""
