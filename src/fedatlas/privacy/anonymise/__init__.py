"""Anonymised training rows: the mechanism `anonymise` of ``[[privacy]]``. The mathematics is in `privacy.anonymity`."""
