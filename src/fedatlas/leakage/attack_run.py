"""``fedatlas attack``: one attack on the view of a run, its figures beside the placebo's, and what it leaves in the run's folder.

    attacks/NAME/attack.json      declaration, keys, metrics, leaks
    attacks/NAME/found.npz        reconstructions beside originals, or scores with the truth

The attacker works in a child without data (`knowledge`); the truth is loaded afterwards, by the scorer, from the data of the
experiment. Where these are gone the answer is kept and says that nobody could score it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.attacks import ATTACKS, LATER
from fedatlas.attacks.inference import INFERENCE, Inference
from fedatlas.attacks.roles import Role
from fedatlas.config import ExperimentConfig, parse
from fedatlas.errors import ConfigError, DataError, TransportError, unknown_name
from fedatlas.leakage import scoring
from fedatlas.leakage.attack_text import summed_up
from fedatlas.leakage.knowledge import attacked
from fedatlas.leakage.network import known
from fedatlas.record.observed import View
from fedatlas.record.run_folder import ATTACK, ATTACKED, CONFIG, FOUND, RunFolder
from fedatlas.registry import arguments
from fedatlas.setup.assembly import Setup, set_up
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked
from fedatlas.setup.views import inferences_of, keys_of

ONE_STEP = (
    "attack '{name}' inverts the gradient of one step on one row a client: write steps = 1 under [local], and as many clients as "
    "rows (data.limit)."
)


def built(name: str, parameters: Mapping[str, Any]) -> Inference:
    """The attack by its name with its keys. ConfigError for a name or key that there is not, and for one that is no attack on a view."""
    if name not in INFERENCE:
        if name in ATTACKS:
            raise ConfigError(
                f"attack '{name}' is carried out in a run: declare it as [[attack]] in the experiment file."
            )
        if name in LATER:
            raise ConfigError(f"attack '{name}' is not in this version, which has {', '.join(INFERENCE)} for views.")
        raise unknown_name("attack", name, INFERENCE)
    return INFERENCE[name](**arguments("attack", INFERENCE[name], parameters))


def attack(
    folder: str | Path, name: str, parameters: Mapping[str, Any] | None = None, whole: Checked | None = None
) -> dict[str, Any]:
    """Attacks the view of a run, scores it, writes both below ``attacks/`` in its folder. Returns the record.

    ``whole``: the experiment, where it has been checked already.
    """
    run = RunFolder.open(Path(folder))
    whole = whole or checked(run.config())
    config = whole.config
    if whole.columns:
        raise ConfigError(
            "attacks are on runs whose parties hold rows: parties that hold columns have no views in this version."
        )
    if config.seeds is not None:
        raise ConfigError(
            f"'{run.path}' holds several seeds: name one of them, such as {run.path / f'seed-{config.seeds[0]}'}."
        )
    run.summary()  # ConfigError while the run is not finished
    made = built(name, {**declared(config, name), **(parameters or {})})
    facts = known(run.path)
    check(made, config, run)
    told = None
    if made.keys.get("labels") == "known":
        setup = set_up(whole)
        told = {k: int(setup.bench.rows(k).y[0]) for k, n in setup.sizes.items() if n} | {-1: 0}
    answer = attacked(run.path, made, config.seed, told)
    found: dict[str, Any] = {"metrics": {}, "leaks": {}, "targets": len(next(iter(answer.values())))}
    arrays: Mapping[str, np.ndarray] = answer
    try:
        setup = set_up(whole)
        if made.kind == "inversion":
            targets = others(run.path, made, setup)
            found, arrays = scoring.inverted(setup, facts, answer, targets)
        else:
            found, arrays = scoring.told_apart(setup, answer)
    except (DataError, TransportError) as error:
        found["unscored"] = f"the attacker's answer is kept, but nobody could score it: {error}"
    record = {
        "name": name,
        "kind": made.kind,
        "role": str(made.role),
        "declaration": made.declares._asdict(),
        "keys": dict(made.keys),
        **found,
    }
    run.save_arrays(f"{ATTACKED}/{name}/{FOUND}", arrays)
    run.write_json(f"{ATTACKED}/{name}/{ATTACK}", record)
    return record


def declared(config: ExperimentConfig, name: str) -> dict[str, Any]:
    """The keys of the table that declares this attack; none where no table does."""
    return next((keys_of(table) for table in config.attack if table.name == name), {})


def carried_out(folder: Path, whole: Checked, said: Callable[[str], None]) -> None:
    """The attacks that the experiment declares, on a run that is over; ``said`` is told what each found, or why it found nothing."""
    for name in inferences_of(whole.config):
        said(f"Attack '{name}' on what its role saw ...")
        try:
            found = attack(folder, name, None, whole)
        except ConfigError as error:
            said(f"Attack '{name}' could not be carried out: {error}")
            continue
        said(" ".join(summed_up(found)))


def check(made: Inference, config: ExperimentConfig, run: RunFolder) -> None:
    """ConfigError where the attack cannot say anything of such a run."""
    if made.kind != "inversion":
        return
    View(run.path, made.role)  # refuses one that was not recorded
    local = config.local
    clients = run.read_json("partition.json", "clients")["clients"]
    rows = [len(each) for each in clients.values() if each]
    steps = local.steps if local.steps is not None else local.epochs
    if max(rows, default=0) != 1 or steps != 1:
        raise ConfigError(ONE_STEP.format(name=made.name))


def others(run: Path, made: Inference, setup: Setup) -> list[int]:
    """The targets of a mean: who trained in the first round, but for the attacker."""
    row = next(row for row in RunFolder(run).rows() if row["round"] == 1)
    clients = row.get("clients") or [k for k, n in setup.sizes.items() if n]
    flat = [k for each in clients for k in (each if isinstance(each, list) else [each])]
    many = int(made.keys.get("targets") or 0)
    own = made.role.client if made.role.kind == "client" else None
    return [k for k in flat if k != own][: many or None]


def cell(
    config: ExperimentConfig,
    folder: Path,
    name: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    run: Callable[[ExperimentConfig, Path], object],
) -> dict[str, Any]:
    """A run of ``config`` that records the view of the attack's role, and the attack on it: what is in ``folder`` is not done again.

    ``run``: makes the run of a configuration in a folder.
    """
    made = built(name, {**declared(config, name), **(parameters or {})})
    if not (folder / CONFIG).exists():
        run(with_view(config, made.role), folder)
    written = folder / ATTACKED / name / ATTACK
    if written.exists():
        found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
        if (found["role"], found["keys"], "unscored" in found) == (str(made.role), dict(made.keys), False):
            return found
    return attack(folder, name, parameters)


def with_view(config: ExperimentConfig, role: Role) -> ExperimentConfig:
    """The experiment with the role's view of the set-up and the first two rounds recorded."""
    kept = config.observe.plain() if config.observe is not None else {"roles": [], "rounds": [0, 2]}
    roles = [*kept["roles"], *([] if str(role) in kept["roles"] else [str(role)])]
    return parse({**config.plain(), "observe": {**kept, "roles": roles}})
