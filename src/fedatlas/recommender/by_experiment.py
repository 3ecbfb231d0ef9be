"""The answer for an experiment: that of a race on its rows, or, without one, what the study foresees for them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedatlas.data.sources import read_once
from fedatlas.recommender.answer import answer_for
from fedatlas.recommender.answer_files import Say
from fedatlas.recommender.race_answer import limit_of, race_answer
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.recommender.user_experiment import completed, examined, read_experiment, with_baseline
from fedatlas.study.design import ExecuteTable
from fedatlas.study.execute import runs_there
from fedatlas.study.plain import Plain


def answered(basis: Basis, asked: Requirements, path: Path, out: Path, say: Say, cluster: str | None = None) -> Plain:
    """Return the answer for the experiment in ``path``; its files are written into ``out``.

    ``cluster``: address of a Ray cluster whose nodes make the runs of a race.
    """
    with read_once():
        found = examined(read_experiment(basis, asked, path), say)
        user, raced = found.user, asked.raced
        if not raced:
            user = user._replace(asked=with_baseline(user, out, say))
    answer = answer_for(user.basis.fitted, user.asked, computed=found.costs, track=not raced, barred=found.barred)
    if raced:
        with contextlib.ExitStack() as opened:
            how = ExecuteTable(keep="folder", seconds=limit_of(user.asked))
            elsewhere = opened.enter_context(runs_there(cluster, how, say)) if cluster else None
            return race_answer(found, answer, out, say, elsewhere)
    answer["notes"] += found.notes
    return completed(user, answer, out)
