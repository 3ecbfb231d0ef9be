"""The attacks of an audit: those that the run's file declares, and every other on each role whose view was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, get_args, get_type_hints

from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.membership import CANDIDATES, membership
from fedatlas.attacks.view_attack import ViewAttack
from fedatlas.auditing.lines_to_add import of_game, of_view
from fedatlas.auditing.verdict import TriedAttack, UntriedAttack, tried_of
from fedatlas.errors import FedatlasError
from fedatlas.files import write_bytes
from fedatlas.leakage.attack_run import attack_view, check_attack, facts_of, rows_held
from fedatlas.record.observed import FOLDER, INDEX
from fedatlas.record.run_folder import ATTACK, ATTACKED, FOUND, RunFolder
from fedatlas.setup.checked import Checked
from fedatlas.setup.views import view_attacks_of

COLUMNS = "the parties of this run hold columns, and their views are not recorded in this version"
METHODS = get_args(get_type_hints(membership)["method"])
OTHERS = "a file declares one method; write 'fedatlas attack RUN --name membership method={one}' for another"
RULE = "guesses at labels"


class Tries(NamedTuple):
    """The attacks that were carried out, and those that were not."""

    tried: list[TriedAttack]
    untried: list[UntriedAttack]


def try_all(run: RunFolder, whole: Checked, said: Callable[[str], None]) -> Tries:
    """Carry out every attack that applies to a run. What was already carried out as declared is taken from its record."""
    out = Tries([], [])
    if whole.columns:
        out.tried.extend(label_guesses(run.summary()))
        out.untried.extend(UntriedAttack(name, COLUMNS) for name in VIEW_ATTACKS)
        out.untried.extend([] if out.tried else [UntriedAttack(RULE, why_no_guesses(run.summary(), whole))])
        return out
    declared = view_attacks_of(whole.config)
    for name in VIEW_ATTACKS:
        chances = dict(_chances(run, name, declared))
        if not chances:
            out.untried.append(of_view(VIEW_ATTACKS[name](), whole, list(rows_held(run).values())))
        with _undisturbed(run, name):
            for made in chances.values():
                said(f"Attack '{name}' on the view of {made.role} ...")
                out_of = _once(run, whole, made)
                (out.tried if isinstance(out_of, TriedAttack) else out.untried).append(out_of)  # type: ignore[arg-type]
        if (run.path / ATTACKED / name / CANDIDATES).exists():
            out.untried.extend(_other_methods(chances.values()))
    return out


@contextmanager
def _undisturbed(run: RunFolder, name: str) -> Iterator[None]:
    """Keep the findings of an attack that the run holds, which are those of the declared role."""
    files = [run.path / ATTACKED / name / one for one in (ATTACK, FOUND)]
    before = {one: one.read_bytes() for one in files if one.exists()}
    yield
    for file, content in before.items():
        write_bytes(file, content)


def _other_methods(made: Iterable[ViewAttack]) -> Iterator[UntriedAttack]:
    """Yield the methods of membership inference that were not tried."""
    tried = {one.keys["method"] for one in made}
    if names := [one for one in METHODS if one not in tried]:
        yield UntriedAttack(f"membership by {', '.join(names)}", OTHERS.format(one=names[-1]))


def _chances(run: RunFolder, name: str, declared: Mapping[str, ViewAttack]) -> Iterator[tuple[str, ViewAttack]]:
    """Yield role -> the attack, on each recorded role that can carry it out, or on the final model; first as it is declared."""
    plain = declared.get(name) or VIEW_ATTACKS[name]()
    if name in declared:
        yield str(plain.role), plain
    roles = list(run.read_json(f"{FOLDER}/{INDEX}").get("roles", {})) if (run.path / FOLDER / INDEX).exists() else []
    for role in dict.fromkeys([*roles, *(["outsider"] if plain.rounds is None else [])]):
        if role.partition(":")[0] in plain.roles and not (name in declared and role == str(plain.role)):
            yield role, VIEW_ATTACKS[name](role=role, **(plain.keys if name in declared else {}))


def _once(run: RunFolder, whole: Checked, made: ViewAttack) -> TriedAttack | UntriedAttack:
    """Return the result of one attack, from its record if the run's folder holds one."""
    figure = made.figures[made.leak]
    try:
        record = _record(run, made)
        if record is None:
            check_attack(made, whole.config, run)
            if not all((run.path / ATTACKED / made.name / name).exists() for name in made.files):
                return of_game(made, whole)
            record = attack_view(run.path, made.name, {**made.keys, "role": str(made.role)}, whole)
    except (FedatlasError, RuntimeError) as error:
        return UntriedAttack(f"{made.name} ({made.role})", str(error))
    if "unscored" in record:
        return UntriedAttack(f"{made.name} ({made.role})", str(record["unscored"]))
    return tried_of(record, made.leak, figure)


def _record(run: RunFolder, made: ViewAttack) -> dict[str, Any] | None:
    """Return the record of a declared attack if it was scored."""
    path = f"{ATTACKED}/{made.name}/{ATTACK}"
    if not (run.path / path).exists():
        return None
    found: dict[str, Any] = run.read_json(path)
    same = (found["role"], found["keys"]) == (str(made.role), facts_of(made)["keys"])
    return found if same and "unscored" not in found else None


def why_no_guesses(summary: Mapping[str, Any], whole: Checked) -> str:
    """Return why no guess at labels of parties without them was measured."""
    if whole.of_columns().attack is None:
        return f"this version has no such attack on '{summary['algorithm']}'"
    if "labels_told" in summary:
        return "the label is a number, for which this version states no power"
    return "they are measured only in a simulation with baselines, where labels are known: leave --no-baselines out"


def label_guesses(summary: Mapping[str, Any]) -> Iterator[TriedAttack]:
    """Yield the guesses of parties without the label, as a simulation measured them (`runs.columns_labels`)."""
    found = summary.get("labels_told")
    if not found or not found.get("classes"):
        return
    few, many = found["classes"]
    beyond = 1.959964 * ((few + many + 1) / (12 * few * many)) ** 0.5  # of an AUC by chance (Mann & Whitney 1947)
    for party, rules in found["cases"][0]["auc"].items():
        for rule, auc in rules.items():
            leak = auc - 0.5
            yield TriedAttack(
                f"{RULE} by {rule}",
                party,
                "AUC",
                few + many,
                auc,
                0.5,
                leak,
                leak - beyond,
                leak + beyond,
                how=found["rules"][rule],
            )
