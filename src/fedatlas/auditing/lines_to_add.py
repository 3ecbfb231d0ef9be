"""Lines for the experiment file with which an audit could try more: only such as the next run would take, all together."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.view_attack import ViewAttack
from fedatlas.auditing.verdict import UntriedAttack
from fedatlas.config import parse
from fedatlas.errors import ConfigError, DataError
from fedatlas.files import OWN_FILES
from fedatlas.leakage.knowledge import no_classes
from fedatlas.setup.assembly import set_up
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import checked
from fedatlas.setup.truth import truth_of
from fedatlas.setup.views import view_attacks_of

TO_ADD = "To have them tried, add to the experiment file before the next run (keys of a table that it has go into that table)"
NO_VIEW = "no role's view of this run was recorded"
BETWEEN_PARTIES = (
    "between real parties no view is recorded and no game is drawn: try it in a simulation on rows like theirs"
)
NOT_DRAWN = "{} was not drawn before round 1"
HELD_OUT = "[evaluation]\nclients = 0.5"
GAME = '[[attack]]\nname = "{}"'
VIEW = '[observe]\nroles = ["{}", "outsider"]'


def of_game(made: ViewAttack, whole: Checked) -> UntriedAttack:
    """Return an attack whose files were not drawn, with the lines that have them drawn; or that is tried only where it is declared."""
    if made.late:
        return UntriedAttack(made.name, made.late, GAME.format(made.name))
    held_out = [] if whole.config.evaluation.clients else [HELD_OUT]
    return UntriedAttack(made.name, NOT_DRAWN.format(made.files[0]), "\n\n".join([*held_out, GAME.format(made.name)]))


def of_view(made: ViewAttack, whole: Checked, rows: Sequence[int]) -> UntriedAttack:
    """Return an attack without a view, with the lines that record one; with the reason if it would be refused all the same.

    rows: those of each client.
    """
    if made.files:
        return of_game(made, whole)
    role = "client:0" if whole.algorithm.serverless else "server"
    lines, declared = VIEW.format(role), f'{GAME.format(made.name)}\nrole = "{role}"'
    why = refusal(joined([lines, declared]), whole) or made.refuses_run(whole.config, rows)
    return UntriedAttack(made.name, why, "") if why else UntriedAttack(made.name, NO_VIEW, lines)


def offered(untried: Iterable[UntriedAttack], whole: Checked) -> list[UntriedAttack]:
    """Return the attacks, each with its lines only if the experiment takes them and those of all attacks before it."""
    out, kept = list[UntriedAttack](), list[str]()
    for one in untried:
        why = refusal(joined([*kept, one.add]), whole) if one.add else ""
        if one.add and not why:
            kept.append(one.add)
        said = f"{one.reason.rstrip('.')}, and the lines for it would be refused: {why}"
        out.append(UntriedAttack(one.attack, said) if why else one)
    return out


def fitting(untried: Iterable[UntriedAttack], whole: Checked) -> list[UntriedAttack]:
    """Return the attacks, each with its lines only if the rows of the run suit them: they are read, and the games drawn.

    Without the data the lines stay.
    """
    out, kept = list[UntriedAttack](), list[str]()
    for one in untried:
        why = misfit(joined([*kept, one.add]), whole, one.attack) if one.add and one.add not in kept else ""
        kept += [one.add] if one.add and not why else []
        out.append(UntriedAttack(one.attack, f"these rows do not suit it: {why}") if why else one)
    return out


def misfit(lines: str, whole: Checked, attack: str = "") -> str:
    """Return why an experiment with these lines would be refused before round 1; "" if it would not, or without its data.

    ``attack``: the attack that they are for, which may be refused by its rows all the same.
    """
    try:
        setup = set_up(checked(parse(merged(whole.config.plain(), tomllib.loads(lines))), whole.module))
        if attack in VIEW_ATTACKS and (why := no_classes(setup.dataset.task)):
            return why
        truth = truth_of(setup)
        for made in view_attacks_of(setup.config).values():
            made.draws(truth)
    except DataError:
        return ""
    except ConfigError as error:
        return str(error)
    return ""


def joined(lines: Iterable[str]) -> str:
    """Return lines as one text, with each table once."""
    return "\n\n".join(dict.fromkeys(table for one in lines for table in one.split("\n\n") if table))


def refusal(lines: str, whole: Checked) -> str:
    """Return why an experiment with these lines would be refused before its data are read; "" if it would not."""
    if whole.config.data.options().get("path") == OWN_FILES:
        return BETWEEN_PARTIES
    try:
        checked(parse(merged(whole.config.plain(), tomllib.loads(lines))), whole.module)
    except ConfigError as error:
        return str(error)
    return ""


def merged(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of an experiment with further ones: keys go into a table that is there, items to the end of a list."""
    out = dict(config)
    for key, value in more.items():
        held = out.get(key)
        if isinstance(value, Mapping) and isinstance(held, Mapping):
            out[key] = merged(held, value)
        elif key == "attack":
            out[key] = [*(held or ()), *value]
        else:
            out[key] = value
    return out
