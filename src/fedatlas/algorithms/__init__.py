"""The algorithms by name: one short file per paper, one line here. `fedatlas list algorithms` prints this table."""

from collections.abc import Callable, Mapping

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms.baselines import centralised, local_only
from fedatlas.algorithms.cfl import cfl
from fedatlas.algorithms.ditto import ditto
from fedatlas.algorithms.fedavg import fedavg, fedavgm, fedsgd
from fedatlas.algorithms.fedbn import fedbn
from fedatlas.algorithms.feddf import feddf
from fedatlas.algorithms.feddyn import feddyn
from fedatlas.algorithms.fedma import fedma
from fedatlas.algorithms.fedmd import fedmd
from fedatlas.algorithms.fednova import fednova
from fedatlas.algorithms.fedopt import fedadagrad, fedadam, fedyogi
from fedatlas.algorithms.fedprox import fedprox
from fedatlas.algorithms.fedseq import fedseq, fedseq_inter
from fedatlas.algorithms.fesem import fesem
from fedatlas.algorithms.gossip import gossip
from fedatlas.algorithms.hwfedavg import hwfedavg, nwfedavg
from fedatlas.algorithms.ifca import ifca
from fedatlas.algorithms.moon import moon
from fedatlas.algorithms.push_sum import push_sum
from fedatlas.algorithms.scaffold import scaffold
from fedatlas.registry import OURS

ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = {
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "hwfedavg": hwfedavg,
    "nwfedavg": nwfedavg,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedprox": fedprox,
    "feddyn": feddyn,
    "scaffold": scaffold,
    "fedseq": fedseq,
    "fedseq_inter": fedseq_inter,
    "gossip": gossip,
    "push_sum": push_sum,
    "moon": moon,
    "fednova": fednova,
    "fedma": fedma,
    "cfl": cfl,
    "fesem": fesem,
    "ifca": ifca,
    "ditto": ditto,
    "fedmd": fedmd,
    "feddf": feddf,
    "fedbn": fedbn,
    "centralised": centralised,
    "local_only": local_only,
}
OURS["algorithms"] = ALGORITHMS
