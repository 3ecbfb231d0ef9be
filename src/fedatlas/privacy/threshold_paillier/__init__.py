"""Encryption under a key in shares (P17): no party, nor the server with all clients but one, can decrypt.

cryptosystem.py   its part in a sum of encrypted updates: keys in shares, signed ciphertexts
opening.py        every party forms the sum of the signed ciphertexts itself and gives its share of that sum only
threshold_sum.py  the protocol around an ask: what all clients are told, and what each of them checks
"""
