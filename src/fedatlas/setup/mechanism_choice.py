"""``[[privacy]]``: which mechanisms an experiment asks for, in the sound order, and which algorithms they can protect.

`mechanisms_of` is about the tables alone. `why_not` is about a mechanism and an algorithm: it reads the algorithm's record and asks
for nothing that a plug-in's record does not say as well. Only what the mathematics alone knows is declared
(`Algorithm.refuses`, under "masks" for what hides updates from the server, under "dp" for noise on the level of clients).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

from fedatlas.algorithm import Algorithm, Question, Task, global_model, nothing_beside, return_model, take_mean
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.privacy.mechanisms import LATER, MECHANISMS, ORDER, Mechanism, Paillier
from fedatlas.privacy.protection import follows_data
from fedatlas.registry import arguments, find, keywords

MASKS = ("secagg", "paillier")
"""Mechanisms that hide each update from the server, which sees sums alone."""

NOISE = ("central_dp", "local_dp", "nbafl")
"""Mechanisms whose noise has a price in epsilon."""

ALONE: Mapping[str, str] = {
    "central_dp": "its server clips what each client sent, and no further noise is in its account",
    "nbafl": "the noise of its server is made for that of its clients and for nothing else",
}
"""Mechanisms that stand beside no other, and why."""

EXTRAS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "secagg": (("cryptography", "he"),),
    "paillier": (("gmpy2", "he"), ("cryptography", "he")),
    "central_dp": (("dp_accounting", "dp"), ("cryptography", "dp")),
    "local_dp": (("cryptography", "dp"),),
    "nbafl": (("cryptography", "dp"),),
}
"""What a mechanism imports that a plain installation has not: (module, extra)."""

REMEDIES: tuple[Mapping[str, Any], ...] = ({"weights": "uniform"}, {"phi": "random"})
"""Parameters with which an algorithm goes that does not go with its defaults."""


def mechanisms_of(config: ExperimentConfig) -> tuple[Mechanism, ...]:
    """What ``[[privacy]]`` asks for, in the sound order.

    ConfigError for an unknown name or key, mechanisms that exclude each other, and an extra that is not installed.
    """
    made: dict[str, Mechanism] = {}
    for table in config.privacy:
        name = table.name
        if name in LATER:
            raise ConfigError(f"privacy.name = '{name}': not in this version, which has {', '.join(MECHANISMS)}.")
        if name not in MECHANISMS:
            raise unknown_name("mechanism", name, MECHANISMS)
        if name in made:
            raise ConfigError(f"[[privacy]]: '{name}' stands there twice; remove one of its tables.")
        made[name] = MECHANISMS[name](**arguments(f"privacy.{name}", MECHANISMS[name], table.parameters()))
    check_pairs(made)
    ordered = tuple(made[name] for name in ORDER if name in made)
    for one in ordered:
        check_extras(one, config)
        if isinstance(one, Paillier):
            check_chosen(one.encrypt)
    return ordered


def check_pairs(names: Collection[str]) -> None:
    """ConfigError for mechanisms that cannot stand side by side."""
    if all(name in names for name in MASKS):
        raise ConfigError("[[privacy]]: 'secagg' and 'paillier' both hide updates from the server; remove one of them.")
    for name, why in ALONE.items():
        if others := [other for other in names if other != name and name in names]:
            raise ConfigError(f"[[privacy]]: '{name}' stands alone: {why}; remove '{others[0]}', or '{name}'.")


def check_extras(mechanism: Mechanism, config: ExperimentConfig) -> None:
    """ConfigError where a package is not installed that the mechanism needs in this experiment."""
    for module, extra in EXTRAS[mechanism.name]:
        if module == "dp_accounting" and config.cohort.sampling != "poisson":
            continue  # what is not sampled has a closed form
        if module == "cryptography" and getattr(mechanism, "noise", "os") == "seed":
            continue
        if find_spec(module) is None:
            package = module.replace("_", "-")
            raise ConfigError(
                f"privacy.name = '{mechanism.name}' needs {package}, which is not installed: pip install \"fedatlas[{extra}]\"."
            )


def check_chosen(encrypt: str | tuple[str, ...]) -> None:
    """ConfigError for a choice of layers that is none of those that ``encrypt`` can name."""
    kind, colon, number = encrypt.partition(":") if isinstance(encrypt, str) else ("", "", "")
    if isinstance(encrypt, str):
        some = kind == "outermost" and colon and number.isdigit() and int(number)
        if not (encrypt in {"all", "output"} or some):
            raise ConfigError(
                f"privacy.paillier.encrypt = '{encrypt}': expected 'all', 'output', 'outermost:N' or a list of parameters."
            )
    elif not encrypt:
        raise ConfigError("privacy.paillier.encrypt: an empty list encrypts nothing; remove the table.")


# ---------------------------------------------------------------------- mechanism and algorithm


def why_not(mechanism: str, algorithm: Algorithm) -> str:
    """Why a mechanism cannot protect the rounds of an algorithm; "" where it can."""
    reasons = {"nbafl": (no_sum, no_plain_mean, declared_of_noise)}.get(
        mechanism, (no_sum, shows_models, declared_of_masks) if mechanism in MASKS else CLIENT_LEVEL
    )
    return next((why for reason in reasons if (why := reason(algorithm))), "")


def no_sum(algorithm: Algorithm) -> str:
    """An algorithm whose server is told no sum of what clients send."""
    if algorithm.serverless:
        return "no server forms a sum"
    return {"rows": "its clients send their rows, not updates", "nothing": "nothing leaves a client"}.get(
        algorithm.card.sends, ""
    )


def shows_models(algorithm: Algorithm) -> str:
    """One whose server looks at what a single client's work made of the model; numbers that a question declares it may see."""
    seen = [
        what
        for what, task in algorithm.tasks.items()
        if (isinstance(task, Task) and task.shows) or "model" in task.shows
    ]
    if seen and "train" not in seen and algorithm.groups is not None:
        return "its grouping shows the server a model of each client"
    return "its server looks at each client's model" if seen else ""


def declared_of_masks(algorithm: Algorithm) -> str:
    """What its record declares of masks and encryption."""
    return algorithm.refuses.get("masks", "")


def declared_of_noise(algorithm: Algorithm) -> str:
    """What its record declares of noise on the level of clients."""
    return algorithm.refuses.get("dp", "")


def hands_on(algorithm: Algorithm) -> str:
    """Models that go from client to client."""
    return "a chain's clients see models without noise" if algorithm.groups is not None else ""


def spares_tensors(algorithm: Algorithm) -> str:
    """Tensors of an update that no transform touches, so that nothing clips or noises them."""
    trained = [task for task in algorithm.tasks.values() if isinstance(task, Task)]
    spared = any(task.sealing.beside is not nothing_beside for task in trained)
    return "its clients' batch-norm layers leave without noise" if spared else ""


def adds_beside(algorithm: Algorithm) -> str:
    """Plain numbers that are added up as they are."""
    names = [name for task in algorithm.tasks.values() if isinstance(task, Task) for name in task.sums]
    return f"it reads its clients' {' and '.join(names)} without noise" if names else ""


def weighs_by_data(algorithm: Algorithm) -> str:
    """Coefficients that differ between two cohorts of the same clients with other rows."""
    return "weights that follow the data have no fixed sensitivity" if follows_data(algorithm) else ""


def asks_questions(algorithm: Algorithm) -> str:
    """Answers of clients that are no change of a model, and so have no length to be clipped to."""
    asked = [what for what, task in algorithm.tasks.items() if isinstance(task, Question)]
    return (
        f"its clients' answers ('{asked[0]}') are no change of a model, which alone is clipped and noised"
        if asked
        else ""
    )


def begins_early(algorithm: Algorithm) -> str:
    """A set-up with all clients."""
    return "its set-up before round 1 asks all clients without noise" if algorithm.prepare is not None else ""


def no_plain_mean(algorithm: Algorithm) -> str:
    """Whatever is not: send the model, train it from there, send it back whole, take the mean."""
    train, usual = algorithm.tasks.get("train"), Algorithm()
    kept = ("rounds", "prepare", "client_init", "personal", "clusters", "groups")
    whole = (
        isinstance(train, Task)
        and len(algorithm.tasks) == 1
        and train.finish is return_model
        and train.settle is None
        and algorithm.server_update is take_mean
        and algorithm.models is global_model
        and all(getattr(algorithm, name) is getattr(usual, name) for name in kept)
    )
    return "" if whole else "NbAFL noises whole models, of which the server takes the mean and nothing else"


CLIENT_LEVEL = (
    no_sum,
    hands_on,
    shows_models,
    declared_of_noise,
    spares_tensors,
    adds_beside,
    weighs_by_data,
    asks_questions,
    begins_early,
)
"""What keeps noise on the level of clients from an algorithm; what a parameter could change comes behind what none can."""


def remedy(mechanism: str, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters of an algorithm with which the mechanism goes, beside those given; {} where there are none."""
    builder = find("algorithms", ALGORITHMS, name)
    for changed in REMEDIES:
        if changed.keys() <= keywords(builder).keys():
            made = builder(**arguments("algorithm", builder, {**given, **changed}))
            if not why_not(mechanism, made):
                return changed
    return {}


def check_algorithm(config: ExperimentConfig, algorithm: Algorithm, mechanism: Mechanism) -> None:
    """ConfigError for a mechanism that cannot protect the algorithm's rounds, with what would help where something does."""
    if not (why := why_not(mechanism.name, algorithm)):
        return
    found = remedy(mechanism.name, config.algorithm.name, config.algorithm.parameters())
    advice = " and ".join(f'algorithm.{key} = "{value}"' for key, value in found.items())
    raise ConfigError(
        f"[[privacy]] '{mechanism.name}': not with '{algorithm.name}': {why}; "
        + (f"write {advice}." if advice else f"take another algorithm ('fedatlas show {mechanism.name}' lists them).")
    )


def goes_with(mechanism: str) -> dict[str, str]:
    """Our algorithms that a mechanism protects: name -> the parameters that it takes for it, "" where the defaults will do."""
    found: dict[str, str] = {}
    for name, build in ALGORITHMS.items():
        if not why_not(mechanism, build()):
            found[name] = ""
        elif changed := remedy(mechanism, name, {}):
            found[name] = ", ".join(f'{key} = "{value}"' for key, value in changed.items())
    return found
