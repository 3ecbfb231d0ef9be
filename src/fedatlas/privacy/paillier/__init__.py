"""Additively homomorphic encryption: Paillier's cryptosystem (`cryptosystem`), and sums of encrypted updates."""
