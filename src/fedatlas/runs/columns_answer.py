"""The answer of a run whose parties hold columns: whether the label's holder is better off together than alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedatlas.config import ExperimentConfig
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.answer import DRAWS, asked_of, evidence_of
from fedatlas.runs.columns_baselines import finished, gain
from fedatlas.runs.owners_baselines import gain_of_owners, owners_answer
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked
from fedatlas.verdict.answer import Answer, PartyEvidence, answer
from fedatlas.vertical.judging import Judged


def columns_answer(config: ExperimentConfig, summary: Mapping[str, Any], judged: Mapping[str, Judged]) -> Answer:
    """Return the answer by the rule of all runs, for the only party that predicts: the one that holds the label.

    ``judged``: "together" and each baseline by name. Alone it would train on all its rows, where it has more than the common ones.
    """
    together, alone = judged["together"], judged.get("alone_all", judged["alone"])
    metric = together.metric(config.evaluation.metric)
    said = {
        "together": together.said(),
        "alone": alone.said(),
        "trivial": together.by_constant(together.constant()),
    }
    counted = {name: one.at(one.weight > 0) for name, one in said.items()}
    models = {name: (one, metric.weighted(one)) for name, one in counted.items()}
    k, holder = next((k, one) for k, one in enumerate(summary["parties"]) if one["active"])
    evidence = [PartyEvidence(k, holder["name"], evidence_of(summary, models), own=True)]
    party = (config.words and config.words.party) or "party"
    asked = asked_of(config, summary, metric)._replace(party=party, rows="test row")
    judged_on = str(summary.get("judged_on"))
    return answer(asked, evidence, summary["seed"], judged_on, len(together.train), DRAWS)


def gain_and_answer(
    path: Path, whole: Checked, summary: Mapping[str, Any], said: Callable[[str], None]
) -> tuple[dict[str, Any], Answer]:
    """Return the gain of a finished run and its answer, from baselines that are trained here."""
    if whole.of_columns().layout == "rows":
        found = gain_of_owners(path, whole, said)
        return found.gain, owners_answer(whole.config, summary, found.judged, finished(path, whole))
    found = gain(path, whole, said)
    return found.gain, columns_answer(whole.config, summary, found.judged)


def columns_answer_again(path: Path, summary: Mapping[str, Any]) -> Answer | None:
    """Return the answer of a finished run by its present words and margin; None without baselines, which are trained again."""
    if "gain" not in summary:
        return None
    whole = checked(RunFolder(path).config())
    return gain_and_answer(path, whole, summary, lambda text: None)[1]
