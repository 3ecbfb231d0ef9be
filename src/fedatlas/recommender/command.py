"""``fedatlas recommend``: from REQUIREMENTS.toml to an answer with runnable files.

From numbers only, nothing of torch is imported, and the answer takes less than a second. With an experiment, the user's own model
is examined (`recommender.user_experiment`), and on request the best choices are run on the user's data (`recommender.remeasure`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedatlas.errors import ConfigError
from fedatlas.files import write_json
from fedatlas.recommender.answer import answer_for, features_asked, forecast_at
from fedatlas.recommender.answer_files import Say, configured, epsilon_for, obtained, write_experiment
from fedatlas.recommender.epsilon import stated_at
from fedatlas.recommender.privacy_notes import privacy_notes
from fedatlas.recommender.requirements import Requirements, read_requirements, requirements
from fedatlas.recommender.shipped import Basis, load_study
from fedatlas.recommender.twins import barred_twins, offered, twin_notes
from fedatlas.study.plain import Plain, Row

OUT = Path("runs") / "recommendations"
ANSWER = "answer.json"


def recommend(
    asked: Path | str | Row,
    *,
    measure: bool = False,
    out: Path | str | None = None,
    say: Say | None = None,
) -> Plain:
    """Return the recommended configurations for these requirements as plain values; write their experiment files into ``out``.

    ``asked``: REQUIREMENTS.toml, or its tables. ``measure``: also run the best three, FedAvg and the centralised baseline on the
    experiment's own data and answer from the results. ``say`` receives progress messages. ConfigError for invalid requirements.
    """
    folder, name = (Path(), "answer") if isinstance(asked, Mapping) else (Path(asked).parent, Path(asked).stem)
    read = requirements(asked, folder) if isinstance(asked, Mapping) else read_requirements(Path(asked))
    if measure and read.experiment is None:
        raise ConfigError("--measure runs on your own data: name an experiment file in [federation] experiment.")
    basis = load_study(read.study, folder)
    place = Path(out) if out is not None else OUT / name
    if read.experiment is None:
        answer = by_numbers(basis, read, place)
    else:
        tell = say or (lambda _: None)
        answer = by_experiment(basis, read, folder / read.experiment, place, measure=measure, say=tell)
    answer = {"study": about(basis), **answer}
    answer["notes"] += privacy_notes(basis, read, answer, measure=measure)
    write_json(place / ANSWER, answer)
    return answer


def by_experiment(basis: Basis, asked: Requirements, path: Path, out: Path, *, measure: bool, say: Say) -> Plain:
    """Return the answer for an experiment file; with ``measure`` the one based on its own runs."""
    from fedatlas.recommender.user_experiment import completed, predicted

    user, answer, barred = predicted(basis, asked, path, out, say)
    if not measure:
        return completed(user, answer, out, {})
    from fedatlas.recommender.remeasure import measured_answer

    return measured_answer(user, answer, barred, out, say)


def by_numbers(basis: Basis, asked: Requirements, out: Path) -> Plain:
    """Return the answer if nodes, rows and heterogeneity are given: no data are read."""
    basis = offered(basis, asked)
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
    answer["track_record"]["obtained"] = obtained(basis)
    return answer


def about(basis: Basis) -> Plain:
    """Return a description of the study that answered."""
    return {
        "name": basis.name,
        "settings": len(basis.fitted.settings),
        "choices": list(basis.fitted.choices),
        "data": sorted(set(basis.fitted.data)),
        "runs": sum(basis.about.get("runs", {}).values()),
        "sha256": basis.about.get("study_sha256"),
    }
