"""CKKS (P12): real numbers, thousands to a ciphertext, that are added with a small error.

parameters.py   the error of a sum, and the noise that hides it
holder.py       a key holder's work by TenSEAL: keys, encryption, decryption
filling.py      its part in a sum of encrypted updates
"""
