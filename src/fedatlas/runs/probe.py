"""``fedatlas probe``: would the others' columns help? A few trees on a few common rows, before a run is paid for.

Rows are matched as in a run, and a small sample of the common ones is drawn. On it the scheme is trained by all parties,
protected as in the run, and by the party with the label alone. Both are judged on the held-out part of the sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedatlas import machine
from fedatlas.algorithm import State
from fedatlas.config import AlgorithmConfig
from fedatlas.errors import ConfigError, DataError
from fedatlas.federation.link import Observer
from fedatlas.files import OWN_FILES
from fedatlas.privacy.mechanism import on_rows
from fedatlas.runs.alignment import about, matched
from fedatlas.runs.columns_baselines import FIGURES, better, drive, grown, kept, redrawn, sent_by, trained
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.setup.resolution import resolve
from fedatlas.vertical.judging import Judged
from fedatlas.vertical.owners import Side
from fedatlas.vertical.parties import order, tensor
from fedatlas.vertical.split import parted
from fedatlas.wording import count

ROWS, TREES = 2000, 10  # common rows drawn, and rounds of the scheme
TEST = 0.25  # share of the drawn rows that judges


@machine.one_thread_an_operator()
def probed(whole: Checked, observers: Iterable[Observer] = ()) -> dict[str, Any]:
    """Return what the others' columns gain on a small sample, with its interval, and what the probe cost.

    Sizes are numbers of rows, costs bytes and seconds. ConfigError for parties whose tables are not here. DataError for too few
    common rows.
    """
    if changing := on_rows(whole.mechanisms):
        raise ConfigError(
            f"a probe keeps no ledger of what the noise of labels costs: leave out [[privacy]] '{changing[0].name}' to probe without it."
        )
    scheme = whole.of_matched()
    before = scheme.trial(whole.how).number - 1  # rounds that ask nothing of others
    if before >= whole.config.rounds:
        raise ConfigError(
            f"none of the run's {count(whole.config.rounds, scheme.words.round)} uses columns of the others, so there is nothing to "
            f"probe: lower algorithm.complete_secure or raise algorithm.{scheme.rounds}."
        )
    rounds = before + TREES
    if any(one.path == OWN_FILES for one in whole.config.parties):
        raise ConfigError(
            "a probe needs every party's table on this machine; between real parties, deploy the experiment with algorithm.trees = 10."
        )
    whole, began, observers = of_rounds(whole, rounds), time.perf_counter(), tuple(observers)
    held, how = consortium(whole), whole.how
    matching, server = matched(held, observers)
    sample = drawn(held, [matching.states.get(k) or {} for k in range(len(held.names))])
    active = held.active
    done = trained(sample, scheme, how, rounds, "probe", observers)
    counted = scheme.facts(drive(done.federation, lambda: scheme.end(how, done.server), rounds + 1))
    state = done.state(active)
    together = Judged(held.parties[active], state, scheme.outputs(state), "test")
    alone = grown(kept(sample, [active]), scheme, how, rounds)
    train, test = len(together.train), len(together.y)
    return {
        **about(held),
        "rows": server["align"]["rows"],
        "train_rows": train,
        "test_rows": test,
        "trees": TREES,
        "trees_before": before,
        "round": scheme.words.round,
        "protected": scheme.protected(how),
        "figure": FIGURES[together.task][0],
        **gained(together, alone, held.parties[active].seed, math.sqrt(1 + test / train)),
        "bytes_alignment": sent_by(matching),
        "bytes_trees": done.bytes,
        "ciphertexts": counted.get("ciphertexts", 0),
        "seconds": time.perf_counter() - began,
        "notices": [*held.notices, *server["align"]["notices"]],
    }


def of_rounds(whole: Checked, rounds: int) -> Checked:
    """Return an experiment with so many rounds of its scheme."""
    keys = {**whole.config.algorithm.parameters(), whole.of_columns().rounds: rounds}
    algorithm = AlgorithmConfig(name=whole.config.algorithm.name, **keys)
    return resolve(whole.config.model_copy(update={"algorithm": algorithm, "rounds": rounds}))


def drawn(held: Consortium, found: list[State]) -> Side:
    """Return the parties with a sample of their common rows: most to train on, the rest to judge. ``found``: their states after matching.

    With classes, each part has its share of every class.
    """
    own = held.parties[held.active]
    assert own.y is not None
    y = own.y[order(found[held.active])]
    share = min(ROWS, len(y)) / len(y)
    parts = parted(y, own.task, {"test": TEST * share, "held": 1 - share}, own.seed)
    if not len(parts["train"]) or not len(parts["test"]):
        raise DataError(f"{len(y)} common rows are too few for a probe.")
    if own.task == "classes" and min(len(np.unique(y[parts[one]])) for one in ("train", "test")) < 2:
        raise DataError(f"the rows drawn of {len(y)} common ones have one class only, so a probe cannot tell.")
    split = {"train": tensor(parts["train"]), "held": tensor(parts["held"][:0]), "test": tensor(parts["test"])}
    return Side(held.parties, tuple({"align": one["align"], "split": split} for one in found))


def gained(together: Judged, alone: Judged, seed: int, spread: float) -> dict[str, Any]:
    """Return the figures of both models, and the gain by each of them with its 95% interval (paired bootstrap).

    ``spread``: factor of the interval's width. The bootstrap draws only the rows that judge; the factor adds what another draw of
    the training rows would change (Nadeau and Bengio 2003).
    """
    keys, exact = FIGURES[together.task], (together.figures(), alone.figures())
    draws = redrawn(together, seed), redrawn(alone, seed)
    return {
        "together": {key: exact[0][key] for key in keys},
        "alone": {key: exact[1][key] for key in keys},
        "gain": {key: better(key, *exact, *draws, spread) for key in keys},
    }
