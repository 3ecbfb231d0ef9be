"""Private ridge regression: owners of rows of the same columns, an engine that adds ciphertexts, and a crypto provider with the key.

numbers.py       fixed point, the rule for the key's length, the bound of the error
masking.py       masked equations, their solution modulo N, fractions
settings.py      the keys of ``[algorithm]``
letter_kinds.py  letters and their forms
roles.py         who is who, and what all know
owner.py         the questions to an owner
engine.py        the questions to the engine
provider.py      the questions to the provider
protocol.py      the rounds
"""
