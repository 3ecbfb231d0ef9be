"""How updates become one: today the weighted sum."""
