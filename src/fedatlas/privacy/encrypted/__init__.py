"""Sums of encrypted updates under any additively homomorphic cryptosystem (P10, P11, P12).

cryptosystem.py    what a cryptosystem supplies
encrypted_sum.py   the protocol around an ask: clients encrypt, the server adds, holders of the key open the sum
opening.py         ways to open a sum
mechanism.py       the common part of the records of encryptions
choice.py          which tensors of a model are encrypted
codes.py           values as whole numbers, for Paillier and BFV
words.py           words of reals in pieces, for BFV and CKKS
residues.py        ciphertexts in rings as bytes, and their sums, for BFV and CKKS
"""
