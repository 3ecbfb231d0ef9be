"""BFV (P12): whole numbers, thousands to a ciphertext, that are added exactly.

parameters.py   ring, primes and plaintext modulus for a federation's sums
holder.py       a key holder's work by SEAL: keys, encryption, decryption
filling.py      its part in a sum of encrypted updates
"""
