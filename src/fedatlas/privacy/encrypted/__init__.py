"""Sums of encrypted updates under any additively homomorphic cryptosystem (P10, P11).

cryptosystem.py    what a cryptosystem supplies
encrypted_sum.py   the protocol around an ask: clients encrypt, the server adds, holders of the key open the sum
opening.py         ways to open a sum
choice.py          which tensors of a model are encrypted
"""
