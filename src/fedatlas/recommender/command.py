"""``fedatlas recommend``: from REQUIREMENTS.toml to an answer with runnable files.

From numbers only, nothing of torch is imported, and the answer takes less than a second. With an experiment, the user's own model
is examined (`recommender.user_experiment`), and the choices are raced on the user's rows (`recommender.race_answer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedatlas.errors import ConfigError
from fedatlas.files import write_json
from fedatlas.recommender.answer import answer_for, features_asked, forecast_at
from fedatlas.recommender.answer_files import Say, configured, epsilon_for, write_experiment
from fedatlas.recommender.epsilon import stated_at
from fedatlas.recommender.privacy_notes import privacy_notes, run_tells
from fedatlas.recommender.requirements import Requirements, read_requirements, requirements
from fedatlas.recommender.shipped import Basis, load_study
from fedatlas.recommender.twins import barred_twins, offered, twin_notes
from fedatlas.study.plain import Plain, Row

OUT = Path("runs") / "recommendations"
ANSWER = "answer.json"


def recommend(
    asked: Path | str | Row,
    *,
    out: Path | str | None = None,
    say: Say | None = None,
    cluster: str | None = None,
) -> Plain:
    """Return the recommended configurations for these requirements as plain values; write their experiment files into ``out``.

    ``asked``: REQUIREMENTS.toml, or its tables. With an experiment the choices are raced on its rows. ``say`` receives progress
    messages. ``cluster``: HOST:PORT of a Ray cluster, or "auto", whose nodes make the runs of the race (`docs/cluster.md`).
    ConfigError for invalid requirements.
    """
    folder, name = (Path(), "answer") if isinstance(asked, Mapping) else (Path(asked).parent, Path(asked).stem)
    read = requirements(asked, folder) if isinstance(asked, Mapping) else read_requirements(Path(asked))
    basis = offered(load_study(read.study, folder), read)
    place = Path(out) if out is not None else OUT / name
    if read.experiment is None:
        if cluster is not None:
            raise ConfigError("--cluster spreads the runs of a race: give an experiment, or leave it out.")
        answer = by_numbers(basis, read, place)
    else:
        from fedatlas.recommender.race_answer import answered

        answer = answered(basis, read, folder / read.experiment, place, say or (lambda _: None), cluster)
    answer = {"study": about(basis), **answer}
    answer["epsilon_of_runs"] = [one for one in basis.fitted.choices if "race" not in answer and run_tells(basis, one)]
    answer["notes"] += privacy_notes(basis, read, answer, measure="race" in answer)
    write_json(place / ANSWER, answer)
    return answer


def by_numbers(basis: Basis, asked: Requirements, out: Path) -> Plain:
    """Return the answer if nodes, rows and heterogeneity are given: no data are read."""
    fitted = basis.fitted
    at = features_asked(fitted, asked)
    plain = forecast_at(fitted, at, asked.centralised).values["epsilon"]
    computed = {"epsilon": epsilon_for(basis, asked, at, plain)}
    barred = barred_twins(basis, fitted.nearest(at), asked.nodes)
    answer = answer_for(fitted, asked, computed=computed, barred=barred)
    answer["notes"] += twin_notes(basis, fitted.nearest(at), [entry["choice"] for entry in answer["top"]])
    for i, entry in enumerate(answer["top"]):
        near = basis.near(fitted.nearest(at), entry["choice"])
        where = ", ".join(fitted.settings[near])
        head = (
            f"{entry['choice']} for {entry['rounds']} rounds, recommended by the study {basis.name}.",
            f"[data], [partition] and [model] are those of the measured federation nearest to yours ({where}): replace them with your own.",
        )
        write_experiment(out, i, entry, stated_at(configured(basis, near, entry), asked.delta), *head)
    return answer


def about(basis: Basis) -> Plain:
    """Return a description of the study that answered."""
    return {
        "name": basis.name,
        "settings": len(basis.fitted.settings),
        "choices": [name for name in basis.fitted.choices if name not in basis.without_runs],
        "data": sorted(set(basis.fitted.data)),
        "runs": sum(basis.about.get("runs", {}).values()),
        "sha256": basis.about.get("study_sha256"),
    }
