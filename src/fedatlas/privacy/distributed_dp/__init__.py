"""Distributed differential privacy: every client adds a share of the noise, and masks hide all but the sum."""
