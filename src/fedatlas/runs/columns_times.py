"""How long parties that hold columns would take if each had a core of its own, of rounds that are tried in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any

from fedatlas.algorithm import Question
from fedatlas.runs.columns_baselines import drive, opened, sent_by
from fedatlas.vertical.judging import Judged
from fedatlas.vertical.owners import Side
from fedatlas.vertical.scheme import How, Scheme


class AnswerTimes:
    """How long answers take, question by question. They are timed while ``on``: looking at a core's clock is slow on some machines."""

    def __init__(self, asked: Mapping[str, Question]) -> None:
        self.spent: list[tuple[str, float]] = []
        self.on = True
        self.questions = {name: self._timed(name, one) for name, one in asked.items()}

    def _timed(self, name: str, asked: Question) -> Question:
        def answer(*given: Any) -> Any:
            if not self.on:
                return asked.answer(*given)
            began = time.process_time()
            found = asked.answer(*given)
            self.spent.append((name, time.process_time() - began))
            return found

        return asked._replace(answer=answer)

    def seconds(self) -> tuple[float, float]:
        """Return the seconds since the last call: of parties that work side by side, and of all of them added up.

        Of parties that are asked the same at once the slowest counts.
        """
        side_by_side = sum(max(s for _, s in each) for _, each in groupby(self.spent, key=lambda one: one[0]))
        found = side_by_side, sum(s for _, s in self.spent)
        self.spent = []
        return found


def timed(side: Side, scheme: Scheme, how: How, rounds: int, one_in: int) -> dict[str, Any]:
    """Train so many rounds and predict all rows; return figures on test rows, seconds, bytes and a digest of all outputs.

    ``one_in``: one round of so many is timed, and counts for all of them.
    """
    times = AnswerTimes(scheme.questions(how))
    watched = scheme._replace(questions=lambda _: times.questions)
    done, watch = opened(side, watched, how, "times"), range(1, rounds + 1, one_in)
    server, sent = done.server, done.bytes
    times.seconds()
    for number in range(1, rounds + 1):
        times.on = number in watch
        server = drive(done.federation, partial(scheme.step, how, server, number), number)
        sent += sent_by(done.federation)
    spent, work = (one * rounds / len(watch) for one in times.seconds())
    times.on = True
    drive(done.federation, lambda: scheme.predict(how, server), rounds + 1)
    active = side.parties[0].active
    state = done.state(active)
    outputs = scheme.outputs(state)
    figures = Judged(side.parties[active], state, outputs, "test").figures()
    return {
        "round": rounds,
        **{key: figures[key] for key in ("accuracy", "auc", "loss")},
        "columns": sum(len(one.names) for one in side.parties),
        "training": spent,
        "training_core_seconds": work,
        "training_bytes": sent,
        "prediction": times.seconds()[0],
        "prediction_bytes": sent_by(done.federation),
        "outputs": sha256(outputs.tobytes()).hexdigest(),
    }
