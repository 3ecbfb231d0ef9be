"""Private ridge regression: owners of rows of the same columns, an engine that adds ciphertexts, and a crypto provider with the key.

numbers.py   fixed point, the rule for the key's length, the bound of the error
masking.py   masked equations, their solution modulo N, fractions
settings.py  the keys of ``[algorithm]``
roles.py     who is who, the letters between them, what all know
owner.py     the questions to an owner
engine.py    the questions to the engine
provider.py  the questions to the provider
protocol.py  the rounds
scheme.py    the record, its texts, and what a dry run says
"""

from fedatlas.vertical.ridge.scheme import PRIVATE_RIDGE

__all__ = ["PRIVATE_RIDGE"]
