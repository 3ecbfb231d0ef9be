"""Recommendation of a configuration for a user's requirements, with the evidence from a study's table."""
