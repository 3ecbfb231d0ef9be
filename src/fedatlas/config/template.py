"""``fedatlas new``: a commented experiment file with the code's defaults."""

from __future__ import annotations

from pathlib import Path

from fedatlas.errors import ConfigError
from fedatlas.files import write_text

TEMPLATE = """\
# A fedatlas experiment. Every key is optional; what is written here are the defaults.
# Run it:            fedatlas run {name}
# Change one key:    fedatlas run {name} local.lr=0.01 algorithm.name=fedprox
# Look before:       fedatlas run {name} --dry-run        fedatlas partition {name}

seed = 1                 # seeds = [1, 2, 3] instead: one folder each, mean and spread in the summary
rounds = 20

[data]
name = "digits"          # 'fedatlas list data'; "file" with path = "my.csv", label = "column" for your own
# test = 0.25            # "own" (default), a share, or a file
# limit = 1600           # keep only this many training rows, stratified; 0 = all

[partition]
name = "majority_even"   # 'fedatlas list partitions', such as "iid" or "dirichlet" with alpha = 0.5
clients = 12

[cohort]
fraction = 1.0           # share of the clients that take part in a round; or size = 10

[model]
name = "mlp"             # 'fedatlas list models'
hidden = [64]

# [[models]]             # clients with different models, in place of name and hidden above; for fedmd, feddf, local_only
# name = "mlp"
# hidden = [16]
# share = 0.5            # of the clients; the shares add up to 1
# [[models]]
# name = "cnn2"
# share = 0.5

[algorithm]
name = "fedavg"          # 'fedatlas list algorithms'; parameters of each: 'fedatlas show NAME'

[local]                  # a client's work in a round
epochs = 1               # or steps = 50
batch_size = 32          # 0 = all its rows at once
optimizer = "sgd"        # or "adam"
lr = 0.05
# weight_decay = 0.0
# clip = 10.0            # limit of the gradient's norm

# [local.schedule]       # the learning rate over the rounds
# name = "exponential"   # "step" (every, gamma), "cosine" (rounds)
# gamma = 0.99

# [compression]          # of what a client sends; 'fedatlas list transforms'
# name = "topk"          # "qsgd", "float16", "clip"
# share = 0.01

# [[privacy]]            # one table per mechanism; 'fedatlas list privacy', 'fedatlas show secagg'
# name = "secagg"        # "paillier", "bfv", "ckks"; "central_dp", "dp_ftrl", "local_dp", "dp_sgd", "nbafl" with clip = 1.0
# threshold = 0.7        # share of the clients that have to stay in a round

# [failures]
# dropout = 0.1          # chance that a selected client does not return
# stragglers = 0.5       # share of the cohort that runs fewer epochs

# [evaluation]
# every = 1
# clients = 0.2          # share of each client's rows kept for its own figures
# metric = "auc"         # by which models are compared; left out: one that suits the data

# [stop]
# accuracy = 0.99

# [engine]
# name = "loop"          # the slow, obvious engine that the fast one is checked against
# workers = 0            # 0 = one per core
"""


def write_template(path: Path) -> Path:
    """Write the template; ConfigError if the file exists."""
    if path.exists():
        raise ConfigError(f"'{path}' already exists: choose another name.")
    write_text(path, TEMPLATE.format(name=path.name))
    return path
