"""A second implementation of every algorithm, from its paper's pseudo-code alone: nothing here imports fedatlas.

Each module has ``CASES``, the parameters it is run with, and ``run(problem, **parameters)``. The parameters carry the names and the
defaults of the algorithm's table; a case may change the problem with the key ``problem``, e.g. ``{"problem": {"epochs": 1}}``.
``run`` returns what the server holds after the last round under the names of the algorithm's record ("model", "c", ...), and the states
of the clients it asked under "clients": {k: {...}}. Models are plain vectors: all parameters of the network, one after another.
"""
