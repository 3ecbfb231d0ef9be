"""Short runs of every kind whose folders are compared whole, for same_results.py: rows, columns, seeds, mechanisms, attackers, a study,
and federations of real processes on this machine.

Only the package's public names and its command line are used, so that the same script asks a package whose inside looks otherwise.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli_w

from run_files import Values, call, folder_values
from same_configurations import write_table

Table = dict[str, Any]


class Whole(NamedTuple):
    """What is run, and how."""

    tables: Mapping[str, Any]
    how: Literal["run", "study", "trial"] = "run"
    baselines: bool = False
    judge: str = "server"  # of a trial


DIGITS: Table = {
    "rounds": 3,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6},
    "model": {"hidden": [12]},
    "engine": {"workers": 1},
}
PARTIES: list[Table] = [
    {"name": "bank", "path": "bank.csv", "id": "customer", "label": "default"},
    {"name": "shop", "path": "shop.csv", "id": "client"},
]
TREES: Table = {"parties": PARTIES, "algorithm": {"name": "secureboost", "trees": 2, "bins": 5, "depth": 2}}
ONE_ROW: Table = {  # a client's change is the gradient of one row, which can be inverted
    "rounds": 2,
    "seeds": [1, 2, 3],
    "data": {"name": "digits", "limit": 8, "scale": "federated"},
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "lenet_sigmoid"},
    "local": {"steps": 1, "lr": 0.1},
    "observe": {"roles": ["server", "client:0"]},
    "attack": [{"name": "inverting_gradients", "iterations": 30, "targets": 3}],
    "engine": {"workers": 1},
}
MEMBERS: Table = {
    "evaluation": {"clients": 0.3},
    "observe": {"roles": ["outsider"]},
    "attack": [{"name": "membership", "method": "shadow", "shadows": 2, "epochs": 3}],
}
SECRET: Table = {"privacy": [{"name": "secagg"}], "failures": {"dropout": 0.2}, "observe": {"roles": ["server"]}}
NOISE: Table = {"name": "central_dp", "clip": 0.5, "noise_multiplier": 0.3, "noise": "seed"}
LOCAL_NOISE: Table = {"name": "local_dp", "epsilon": 50.0, "clip": 1.0, "noise": "seed"}
UNIFORM: Table = {"algorithm": {"name": "fedavg", "weights": "uniform"}, "data": {**DIGITS["data"], "scale": "none"}}
OWNERS: Table = {
    "data": {"name": "file", "path": "table.csv", "client": "site", "label": "y", "missing": "median", "weight": "w"},
    "partition": {"name": "natural"},
    "model": {"hidden": [8]},
    "local": {"batch_size": 10},
}
STUDY: Table = {
    "base": {**DIGITS, "rounds": 2, "evaluation": {"clients": 0.2}},
    "seeds": [1],
    "factor": [
        {"name": "nodes", "role": "setting", "key": "partition.clients", "levels": [2, 4]},
        {
            "name": "scheme",
            "role": "choice",
            "level": [
                {"name": "fedavg", "set": {"algorithm.name": "fedavg"}},
                {"name": "secret", "set": {"privacy": [{"name": "secagg"}]}},
                {"name": "wild", "set": {"local.lr": 1e30}},
            ],
        },
    ],
}
"""Six cells, of which one is refused and two diverge, and a baseline of each setting: eight runs."""


def configurations() -> dict[str, Whole]:
    """name -> what is run."""

    def rows(*tables: Mapping[str, Any], baselines: bool = False) -> Whole:
        made = dict(DIGITS)
        for table in tables:
            made |= table
        return Whole(made, baselines=baselines)

    attackers = {"attack": [{"name": "sign_flip", "share": 0.34, "c": 3.0}], "aggregation": {"name": "median"}}
    flipped = {"attack": [{"name": "label_flip", "share": 0.34, "pairs": [[3, 5], [0, 8]]}]}
    sites = {**DIGITS, "partition": {"name": "iid", "clients": 3}, "algorithm": {"name": "scaffold"}}
    dealt = {"name": "vertical", "parties": 3, "overlap": 0.5}
    table = {"name": "file", "path": "table.csv", "label": "y", "drop": ["site", "amount"]}
    return {
        "whole_fedavg": rows(baselines=True),
        "whole_scaffold": rows({"algorithm": {"name": "scaffold"}}, baselines=True),
        "whole_ditto": rows({"algorithm": {"name": "ditto"}, "evaluation": {"clients": 0.2}}, baselines=True),
        "whole_table": rows(OWNERS, baselines=True),
        "whole_columns": Whole(TREES, baselines=True),
        "whole_columns_dealt": Whole({"algorithm": TREES["algorithm"], "data": table, "partition": dealt}),
        "whole_columns_paillier": Whole({**TREES, "privacy": [{"name": "paillier"}]}),
        "whole_seeds": Whole(ONE_ROW),
        "whole_membership": rows(MEMBERS),
        "whole_secagg": rows(SECRET, baselines=True),
        "whole_paillier": rows({"privacy": [{"name": "paillier"}], "rounds": 2, "model": {"name": "logistic"}}),
        "whole_central_dp": rows(UNIFORM, {"privacy": [NOISE]}),
        "whole_local_dp": rows(UNIFORM, {"privacy": [LOCAL_NOISE]}),
        "whole_attacked": rows(attackers, baselines=True),
        "whole_flipped": rows(flipped, {"aggregation": {"name": "krum"}}),
        "whole_study": Whole(STUDY, "study"),
        "whole_trial": Whole(sites, "trial"),
        "whole_trial_secagg": Whole({**sites, "privacy": [{"name": "secagg"}], "algorithm": {"name": "fedavg"}}, "trial", judge="nodes"),
        "whole_trial_columns": Whole({**TREES, "privacy": [{"name": "paillier"}]}, "trial", judge="nodes"),
    }  # fmt: skip


def write_parties(folder: Path) -> None:
    """Two tables of the same 110 people, 100 of them in both: what decides the label is known to one half to each."""
    bank, shop = ["customer,tenure,town,default"], ["client,spent,visits"]
    for k in range(110):
        i = 29 * k % 110  # in another order than the shop's
        tenure, spent = 18 + 37 * i % 61, 53 * i % 97
        town = ("Rome", "Oslo", "")[i * i % 3]
        bank.append(
            f"person-{i:03d},{tenure},{town},{('no', 'yes')[int(tenure + spent + 20 * (town == 'Rome') > 105)]}"
        )
    for k in range(10, 120):
        i = 71 * k % 110 + 10
        shop.append(f"person-{i:03d},{53 * i % 97},{'' if i % 9 == 4 else 41 * i % 13}")
    (folder / "bank.csv").write_text("\n".join(bank) + "\n")
    (folder / "shop.csv").write_text("\n".join(shop) + "\n")


def outcome(whole: Whole) -> Values:
    """Every value that it wrote, in a folder that holds the tables of the parties and of the owners."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        write_parties(folder)
        write_table(folder / "table.csv")
        file = folder / "given.toml"
        file.write_text(tomli_w.dumps(dict(whole.tables)))
        return {"run": simulated, "study": studied, "trial": tried}[whole.how](whole, folder)


def simulated(whole: Whole, folder: Path) -> Values:
    """By the public function."""
    from fedatlas import Experiment, run

    done = run(Experiment.of(**whole.tables), out=folder / "run", baselines=whole.baselines)
    written = json.loads((done.path / "summary.json").read_text())
    return folder_values(done.path) | {"returned: is what is written": json.loads(json.dumps(done.summary)) == written}


def studied(whole: Whole, folder: Path) -> Values:
    """By the command line: its table, its rows as exported, its analysis."""
    call(["study", "given.toml", "--out", "study", "--quiet"], folder)
    call(["study", "given.toml", "--out", "study", "--export", "study/runs.csv"], folder)
    call(["study", "given.toml", "--out", "study", "--analyse"], folder)
    return folder_values(folder / "study")


def tried(whole: Whole, folder: Path) -> Values:
    """By the command line: real processes on this machine, and what came home to each node."""
    words = ["deploy", "trial", "given.toml", "--nodes", "3", "--judge", whole.judge, "--out", "run", "--quiet"]
    call(words, folder)
    return folder_values(folder / "run")
