"""``fedatlas attack``: one attack on the view of a run, scored and compared with its placebo, and its files in the run's folder.

    attacks/NAME/attack.json      declaration, keys, metrics, leaks
    attacks/NAME/found.npz        reconstructions with originals, or scores with the truth

The attacker works in a child process without data (`attacker_folder`). Afterwards the scorer loads the truth from the data of the
experiment. Without these data the answer is kept unscored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedatlas.attacks import ATTACKS, VIEW_ATTACKS
from fedatlas.attacks.view_attack import ViewAttack
from fedatlas.config import ExperimentConfig, parse
from fedatlas.data.cells import read_as
from fedatlas.errors import ConfigError, DataError, FedatlasError, TransportError, unknown_name
from fedatlas.leakage.attack_text import attack_sentence
from fedatlas.leakage.attacker_folder import run_attacker
from fedatlas.leakage.knowledge import common_knowledge
from fedatlas.record import row_secret
from fedatlas.record.observed import RoleView
from fedatlas.record.run_folder import ATTACK, ATTACKED, CONFIG, FOUND, RunFolder
from fedatlas.setup.assembly import set_up
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked
from fedatlas.setup.truth import truth_of
from fedatlas.setup.views import build_view_attack, check_kind_of_role, keys_of, view_attacks_of
from fedatlas.wording import capital

AttackRecord = dict[str, Any]
"""The record of an attack, as in attack.json."""


def make_attack(config: ExperimentConfig, name: str, parameters: Mapping[str, Any] | None) -> ViewAttack:
    """Return the attack with its keys in the experiment, overridden by those given. ConfigError for a wrong name or key."""
    if name not in VIEW_ATTACKS:
        if name in ATTACKS:
            raise ConfigError(
                f"attack '{name}' takes place during a run: declare it as [[attack]] in the experiment file."
            )
        raise unknown_name("attack", name, VIEW_ATTACKS)
    declared = next((keys_of(table) for table in config.attack if table.name == name), {})
    return build_view_attack("attack", name, {**declared, **(parameters or {})})


def attack_view(
    folder: str | Path, name: str, parameters: Mapping[str, Any] | None = None, whole: Checked | None = None
) -> AttackRecord:
    """Attack the view of a run, score the answer, write both under ``attacks/`` in its folder; return the record.

    ``whole``: the experiment, if already checked.
    """
    run = RunFolder.open(Path(folder))
    with read_as(run.reading()):
        return _attack_view(run, name, parameters, whole or checked(run.config()))


def _attack_view(run: RunFolder, name: str, parameters: Mapping[str, Any] | None, whole: Checked) -> AttackRecord:
    config = whole.config
    if whole.columns:
        raise ConfigError(
            "attacks apply to runs whose parties hold rows: in this version, parties that hold columns have no views."
        )
    if config.seeds is not None:
        raise ConfigError(
            f"'{run.path}' holds several seeds: name one of them, such as {run.path / f'seed-{config.seeds[0]}'}."
        )
    run.summary()  # ConfigError while the run is not finished
    made = make_attack(config, name, parameters)
    common_knowledge(run.path)
    check_attack(made, config, run)
    root = row_secret.read(run.path)
    told = dict(made.tells(truth_of(set_up(whole, root=root), worked(run))) if made.tells else {})
    if made.sized:
        told["sizes"] = {str(k): n for k, n in rows_held(run).items()}
    if made.shadows:
        told["sizes"] = list(rows_held(run).values())
    if made.late and not all((run.path / ATTACKED / name / file).exists() for file in made.files):
        for file, drawn in made.draws(truth_of(set_up(whole, root=root))).items():
            run.save_arrays(f"{ATTACKED}/{name}/{file}", drawn)
    arrays: Mapping[str, Any] = run_attacker(run.path, made, config.seed, told)
    found: AttackRecord = {"metrics": {}, "leaks": {}, "targets": len(next(iter(arrays.values())))}
    try:
        score = made.score(truth_of(set_up(whole, root=root), worked(run)), arrays)
        found = {key: value for key, value in score._asdict().items() if key != "arrays" and (key != "notes" or value)}
        arrays = score.arrays
    except (DataError, TransportError) as error:
        found["unscored"] = f"the attacker's answer is kept but could not be scored: {error}"
    record = {**facts_of(made), **found}
    run.save_arrays(f"{ATTACKED}/{name}/{FOUND}", arrays)
    run.write_json(f"{ATTACKED}/{name}/{ATTACK}", record)
    return record


def attack_views(folder: Path, whole: Checked, said: Callable[[str], None]) -> dict[str, str]:
    """Run the attacks that the experiment declares on a finished run; return why each failed that could not be carried out.

    ``said`` receives each result. Of an attack that failed the reason is kept in place of its findings, for the report.
    """
    failed = {}
    for name, made in view_attacks_of(whole.config).items():
        said(f"Attack '{name}' on its role's view ...")
        try:
            said(attack_sentence(attack_view(folder, name, None, whole)))
        except (FedatlasError, RuntimeError) as error:
            failed[name] = f"attack '{name}' could not be carried out: {error}"
            said(capital(failed[name]))
            nothing = {"metrics": {}, "leaks": {}, "targets": 0, "unscored": failed[name]}
            record = {**facts_of(made), **nothing}
            RunFolder.open(folder).write_json(f"{ATTACKED}/{name}/{ATTACK}", record)
    return failed


def facts_of(made: ViewAttack) -> AttackRecord:
    """Return what a record says about the attack itself."""
    about = {"name": made.name, "kind": made.kind, "role": str(made.role), "declaration": made.declares.plain()}
    return {**about, "keys": dict(made.keys)}


def check_attack(made: ViewAttack, config: ExperimentConfig, run: RunFolder) -> None:
    """Raise ConfigError if the attack would be meaningless for such a run."""
    check_kind_of_role(made, "attack.role")
    if made.rounds is not None:
        for role in made.views:
            RoleView(run.path, role)  # refuses a view that was not recorded
    if why := made.refuses_run(config, list(rows_held(run).values())):
        raise ConfigError(why)


def rows_held(run: RunFolder) -> dict[int, int]:
    """Return client -> its training rows, for clients that hold any."""
    clients = run.read_json("partition.json", "clients")["clients"]
    return {int(k): n if isinstance(n, int) else len(n) for k, n in clients.items() if n}


def worked(run: RunFolder) -> dict[int, list[int]]:
    """Return round -> the clients that worked in it, in its order; rounds whose row does not list them are left out."""
    out = dict[int, list[int]]()
    for row in run.rows():
        if clients := row.get("clients"):
            out[row["round"]] = [k for each in clients for k in (each if isinstance(each, list) else [each])]
    return out


def ensure_attack(
    config: ExperimentConfig,
    folder: Path,
    name: str,
    parameters: Mapping[str, Any] | None,
    run: Callable[[ExperimentConfig, Path], object],
) -> AttackRecord:
    """Run ``config`` (by ``run``) recording the view of the attack's role, and attack it; return the record. Finished work is kept."""
    made = make_attack(config, name, parameters)
    if not (folder / CONFIG).exists():
        run(with_views(config, made), folder)
    written = folder / ATTACKED / name / ATTACK
    if written.exists():
        found: AttackRecord = json.loads(written.read_text(encoding="utf-8"))
        if (found["role"], found["keys"], "unscored" in found) == (str(made.role), dict(made.keys), False):
            return found
    return attack_view(folder, name, parameters)


def with_views(config: ExperimentConfig, made: ViewAttack) -> ExperimentConfig:
    """Return the experiment with the attack's views recorded: of all rounds if it needs them, else of at least two rounds."""
    _, last = made.rounds or (0, 2)
    kept = config.observe.plain() if config.observe is not None else {"roles": [], "rounds": [0, last and max(last, 2)]}
    roles = dict.fromkeys([*kept["roles"], *map(str, made.views)])
    return parse({**config.plain(), "observe": {**kept, "roles": [*roles]}})
