"""Encryption that can be added up: Paillier's cryptosystem (`cryptosystem`), and sums of encrypted updates."""
