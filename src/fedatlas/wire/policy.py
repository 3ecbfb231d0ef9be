"""A node's ``policy.toml``, which the node checks at every ask. Nothing here needs torch."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from fedatlas.errors import ConfigError, PrivacyError, ProtocolError, unknown_name
from fedatlas.files import OF_THE_FILE
from fedatlas.wire.fields import Bound, record

TEMPLATE = """# What this node takes part in. It checks every ask against this file and refuses all else, with the reason.

# algorithms = ["fedavg", "scaffold"]   # only these; without the line, any that is installed here
# operators = ["operator"]              # only runs that they started
# local_epochs = 4                      # at most so many passes over the rows in a round
# rounds = 200                          # at most so many rounds of one run
min_cohort = 2                          # no round with fewer nodes; under masks never fewer than 3
# members = ["north", "south"]          # only these nodes count for min_cohort
min_rows = 10                           # nothing made of fewer rows (sums, updates, judging), unless in a secure sum
# max_weight_share = 0.9                # no masked mean by rows of which this node's make up more: it would be nearly its update
# names = ["yes", "no"]                 # only these classes and categories are told; cells with others count as missing
# label = "outcome"                     # the run's data.label must be this; task, weight, drop and categories can be pinned, too
# threshold = 0.66                      # no masked run with a lower privacy.secagg.threshold
# secure_aggregation = true             # no run whose server sees this node's update alone
row_order = "secret"                    # the order of rows matched with other parties' columns: "secret" from the server | "seed"
# known_labels = ["federated_forest"]   # schemes on columns that tell all parties the labels: without the line none takes place
# max_ids = 100000                      # another party may ask about at most so many ids
# max_ratio = 10                        # and about at most so many for each id of this node
# decimal = ","                         # how this node's file is written, where looking does not tell: the decimal mark, and
# separator = ";"                       # encoding = "cp1252", sheet = "2026"; nobody else is told
# repeat = true                         # an answer may be opened again in the sum of other nodes, which shows the difference
label_counts = "masked"                 # how many rows of each class: "masked" (only in a secure sum) | "plain" | "no"
                                        # (hwfedavg and nwfedavg need "plain": masks do not hide a score of labels)
"""

TRIAL = (
    ('label_counts = "masked"', 'label_counts = "plain"'),
    ("min_rows = 10", "min_rows = 1"),
    ('row_order = "secret"', 'row_order = "seed"'),
    ("# known_labels = ", "known_labels = "),
)
"""Lines that differ in a trial on one machine. Its rows are not secret, its nodes may be small, and it must equal a simulation."""

Whole = Annotated[int, Bound(least=1)]


class Asked(NamedTuple):
    """An ask as a policy sees it."""

    operator: str
    algorithm: str
    epochs: float  # passes over the rows in this round
    rounds: int
    cohort: int  # nodes of this ask; 0 = not said
    masked: bool  # whether the server sees only sums
    counts_labels: bool = False
    data: Mapping[str, Any] = {}  # the table [data]
    members: tuple[str, ...] | None = None  # names of the nodes of this ask that could count, if known
    alone: bool = False  # whether the server looks at this answer by itself, masks or not
    columns: bool = False  # whether nodes hold columns; then two are enough
    tells_labels: bool = False  # whether labels count as known to all nodes, which hold columns
    ids: int = 0  # of another party that this ask is about
    own_ids: int = 0  # of this node, if parties hold columns
    rows: int | None = None  # effective number of equally weighted rows behind the answer; None: no rows, or unknown
    light: int = 0  # further rows, discounted by weights
    share: float = 0.0  # this node's part of all nodes' training rows, if a masked mean weighs by rows


class Policy(NamedTuple):
    """The contents of a policy file."""

    algorithms: tuple[str, ...] | None = None
    operators: tuple[str, ...] | None = None
    local_epochs: Annotated[float, Bound(least=1e-9)] | None = None
    rounds: Whole | None = None
    min_cohort: Whole = 1
    members: tuple[str, ...] | None = None
    min_rows: Annotated[int, Bound(least=0)] = 10
    max_weight_share: Annotated[float, Bound(least=1e-9)] | None = None
    names: tuple[str, ...] | None = None
    label: str | None = None
    task: str | None = None
    weight: str | None = None
    drop: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    threshold: Annotated[float, Bound(least=0)] = 0.0
    secure_aggregation: bool = False
    row_order: Literal["secret", "seed"] = "secret"
    known_labels: tuple[str, ...] = ()
    max_ids: Whole | None = None
    max_ratio: Annotated[float, Bound(least=1e-9)] | None = None
    label_counts: Literal["masked", "plain", "no"] = "masked"
    repeat: bool = False
    decimal: Literal[".", ","] | None = None
    separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None

    @property
    def form(self) -> dict[str, str]:
        """The format of this node's file, as far as the policy states it."""
        given = {key: getattr(self, key) for key in OF_THE_FILE}
        return {key: value for key, value in given.items() if value is not None}

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read a policy, or the template if there is no file. ConfigError for an unknown key or a value of the wrong kind."""
        text = path.read_text(encoding="utf-8") if path.exists() else TEMPLATE
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"'{path}' is not valid TOML: {error}.") from None
        for key, value in given.items():
            if key not in cls._fields:
                raise unknown_name("key of a policy", key, cls._fields)
            try:
                record(cls, {key: value}, "policy")
            except ProtocolError:
                raise ConfigError(f"'{path}': {key} = {value!r} is not {WORDS[key]}.") from None
        policy: Policy = record(cls, given, "policy")
        return policy

    @staticmethod
    def write_for_trial(path: Path, form: Mapping[str, str] = {}) -> None:
        """Write the policy of a node in a trial on one machine. ``form`` is the format of its file."""
        text = TEMPLATE
        for usual, trial in TRIAL:
            text = text.replace(usual, trial)
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in form.items())
        path.write_text(text, encoding="utf-8")

    def check(self, asked: Asked) -> None:
        """Raise PrivacyError for an ask that this node refuses. The operator sees the sentence."""
        said = [
            _named("algorithm", asked.algorithm, self.algorithms),
            _named("operator", asked.operator, self.operators),
            _most("local epochs", asked.epochs, self.local_epochs),
            _most("rounds", asked.rounds, self.rounds),
            _most("ids of another party", asked.ids, self.max_ids),
            _most("another party's ids for each own id", asked.ids / max(asked.own_ids, 1), self.max_ratio),
        ]
        said.append(self._cohort(asked))
        said += [self._pinned(key, asked.data.get(key)) for key in PINNED]
        if self.secure_aggregation and not asked.masked:
            said.append("a run without secure aggregation, which secure_aggregation = true forbids")
        if asked.tells_labels and asked.algorithm not in self.known_labels:
            said.append(
                f"'{asked.algorithm}', by which labels count as known to all parties: known_labels does not name it"
            )
        hidden = asked.masked and not asked.alone
        if asked.counts_labels and not (self.label_counts == "plain" or (self.label_counts == "masked" and hidden)):
            what = (
                "an ask for label counts"
                if asked.masked == hidden
                else "an answer that tells label counts outside a sum"
            )
            said.append(f"{what}, which label_counts = '{self.label_counts}' forbids here")
        said += [self._rows(asked, hidden), self._share(asked)]
        if found := [one for one in said if one]:
            raise PrivacyError(f"its policy.toml refuses {found[0]}")

    def _rows(self, asked: Asked, hidden: bool) -> str:
        """Return the objection to an answer made of too few rows, or "". In a sum it applies only if weights reduced the count."""
        least = max(self.min_rows, 1) if hidden else self.min_rows
        if asked.rows is None or asked.rows >= least or (hidden and not asked.light):
            return ""
        made = asked.rows + asked.light
        count = f"{made} rows that data.weight makes count as {asked.rows}" if asked.light else f"{made} rows"
        how = "" if hidden else " that the server sees alone"
        return f"an answer made of {count}{how}, fewer than min_rows = {self.min_rows}"

    def _share(self, asked: Asked) -> str:
        """Return the objection to a mean that would be almost this node's update, or ""."""
        if self.max_weight_share is None or asked.share <= self.max_weight_share:
            return ""
        return (
            f"a masked mean by rows, of which this node holds more than max_weight_share = {self.max_weight_share:g} of all: it "
            'would be nearly its own update (where the algorithm has it, algorithm.weights = "uniform" weighs all alike)'
        )

    def _cohort(self, asked: Asked) -> str:
        """Return the objection to too few nodes, or ""."""
        counted = asked.cohort if asked.members is None else sum(map(self.counts, {*asked.members}))
        summed = asked.masked and not asked.columns  # two parties that hold columns add ciphertexts
        least = max(self.min_cohort, 3) if summed else self.min_cohort
        if not asked.cohort or counted >= least:
            return ""
        named = "" if self.members is None else " of its members"
        floor = f"min_cohort = {self.min_cohort}" if least == self.min_cohort else "3, which a secure sum needs"
        return f"a round of {counted} nodes{named}, fewer than {floor}"

    def counts(self, name: str) -> bool:
        """Whether a node counts for ``min_cohort``."""
        return self.members is None or name in self.members

    def _pinned(self, key: str, given: Any) -> str:
        """Return the objection to another label, weight or list of columns than the policy's, or ""."""
        if (own := getattr(self, key)) is None:
            return ""
        same = set(given or ()) == {*own} if isinstance(own, tuple) else given == own
        return "" if same else f"data.{key}, which is not the one that {key} pins"


PINNED = ("label", "task", "weight", "drop", "categories")
"""Keys of ``[data]`` that a policy can pin."""
WORDS = {
    "algorithms": "a list of names",
    "operators": "a list of names",
    "local_epochs": "a number above 0",
    "rounds": "a whole number above 0",
    "min_cohort": "a whole number above 0",
    "members": "a list of names",
    "min_rows": "a whole number",
    "max_weight_share": "a number above 0",
    "names": "a list of names",
    "label": "a name",
    "task": "a kind of target",
    "weight": "a name",
    "drop": "a list of names",
    "categories": "a list of names",
    "threshold": "a number of 0 or more",
    "secure_aggregation": "true or false",
    "row_order": '"secret" or "seed"',
    "known_labels": "a list of names",
    "max_ids": "a whole number above 0",
    "max_ratio": "a number above 0",
    "label_counts": '"masked", "plain" or "no"',
    "repeat": "true or false",
    "decimal": '"." or ","',
    "separator": "a text",
    "encoding": "a text",
    "sheet": "a text",
}


def _named(what: str, name: str, allowed: Collection[str] | None) -> str:
    return "" if allowed is None or name in allowed else f"the {what} '{name}' ({what}s = {list(allowed)})"


def _most(what: str, value: float, most: float | None) -> str:
    return "" if most is None or value <= most else f"{what} = {value:g}, more than {most:g}"
