"""Anonymisation of tables as pure functions: k-anonymity, l-diversity, t-closeness, information loss and risk (P7, P8, P9)."""
