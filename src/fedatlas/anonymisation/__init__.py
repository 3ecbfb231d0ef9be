"""``fedatlas anonymise``: a user's table, generalised so that its rows look alike, with what that costs and what is left of the risk."""
