"""NbAFL: clients clip and noise their models, and the server adds noise if the mean has too little (see `formulas`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import (
    Learns,
    Limits,
    Mechanism,
    Noising,
    Protection,
    Small,
    Source,
    Words,
    Work,
    drawn_by,
    number,
)
from fedatlas.privacy.nbafl.formulas import Setting, accounts, sigma_down, sigma_down_drawn, sigma_up
from fedatlas.privacy.protocol import Doing
from fedatlas.privacy.reasons import declared, first, no_sum
from fedatlas.registry import Positive

if TYPE_CHECKING:
    from fedatlas.algorithm import Algorithm, Update
    from fedatlas.privacy.ask_protocol import Place

LEARNS = Learns(
    "each model with its client's noise: of a single row what the honest epsilon allows, which is far above the paper's",
    "the mean with the noise of all: of a single row what the epsilon of broadcasts allows",
    "clients together take their own noise off the mean; with the server, no more than the server",
)
DONE = (
    "<b>Noise before aggregation (NbAFL).</b> Every client limited its model to a length of {clip:g} and added noise before "
    "it left; the server added more where the mean still needed it."
)
ACCOUNTS = {
    "nominal": (
        "as the paper states it",
        "assumes epsilon below 1, training that averages over rows, and few uploads seen",
    ),
    "exposed": ("the exact account in place of the paper's formula", "still assumes the other two"),
    "uploads": (
        "all uploads of a client seen",
        "as its server sees them; a row moves a model no further than a mean over rows",
    ),
    "honest": (
        "and a row may move the whole model",
        "what holds without assumptions about training, against the server",
    ),
    "broadcasts": ("the same, against another client", "which sees every mean and knows its own noise"),
}


class NbAFL(NamedTuple):
    """The keys of the table, and the values derived from them."""

    epsilon: float
    delta: float
    clip: float
    sensitivity: Literal["paper", "worst_case"]
    noise: Source

    def setting(self, how: Protection) -> Setting:
        """Return the quantities of the paper's formulas."""
        rows = how.smallest if self.sensitivity == "paper" else 1
        return Setting(self.epsilon, self.delta, self.clip, rows, how.K, max(how.rounds, 1))

    def down(self, how: Protection, shares: Mapping[int, float], sizes: Mapping[int, int]) -> float:
        """Return the noise on a mean of the clients ``shares``."""
        s = self.setting(how)
        if len(shares) < how.K:
            return sigma_down_drawn(s, len(shares))
        return sigma_down(s, shares, {k: sizes[k] if s.rows > 1 else 1 for k in shares})

    def update(self, model: Update, how: Protection, doing: Doing) -> Update:
        """Return what a client sends: its whole model clipped to C and noised, in the model's precision."""
        from fedatlas.privacy.clipping import clipped, in_precision
        from fedatlas.privacy.noise import noised

        key, up = ("nbafl up", doing.round, doing.client), sigma_up(self.setting(how))
        return in_precision(noised(clipped(model, self.clip), up, how.noise, *key), model)

    def release(self, value: Update, how: Protection, place: Place, clients: tuple[int, ...], _: Algorithm) -> Update:
        """Return what the server sends: the mean, noised, in the model's precision."""
        from fedatlas.privacy.ask_protocol import weight_of
        from fedatlas.privacy.clipping import in_precision
        from fedatlas.privacy.noise import noised

        shares = {k: weight_of(place.coefficients, k, "model", ()) for k in clients}
        return in_precision(
            noised(value, self.down(how, shares, place.sizes), how.noise, "nbafl down", place.round), value
        )

    def released(self, how: Protection, round: int, clients: Sequence[int]) -> Event | None:
        """Return the ledger's line for a round's uploads, at the honest sensitivity 2 C. A broadcast made of them costs nothing more."""
        if not clients:
            return None
        moved, who = 2 * self.clip, tuple(clients)
        ratio, at = sigma_up(self.setting(how)) / moved, self.delta
        return Event("nbafl", round, "gaussian", ratio, moved, "record", "replace", at, clients=who, source=self.noise)

    def figures(
        self, how: Protection, rows: Sequence[Any], sizes: Mapping[int, int], events: Sequence[Event]
    ) -> dict[str, Any]:
        """Return the paper's epsilon and the values under fewer assumptions, for the round of the run that reveals most."""
        s, uploads = self.setting(how), Counter(k for event in events for k in event.clients)
        drawn = {tuple(zip(row["clients"], row["weights"], strict=True)) for row in rows if row["weights"]}
        noise, most = sigma_up(s), max(uploads.values(), default=0)
        each = [
            accounts(s, up=noise, down=self.down(how, shares, sizes), uploads=most, shares=[*shares.values()])
            for shares in map(dict, drawn)
        ]
        worst = max(each, key=lambda found: found.broadcasts, default=None)
        return {"accounts": {name: number(x) for name, x in worst._asdict().items()} if worst else {}}


def nbafl(
    *,
    epsilon: Positive,
    delta: Small = 0.01,
    clip: Positive,
    sensitivity: Literal["paper", "worst_case"] = "paper",
    noise: Source = "os",
) -> Mechanism:
    """Noise on each client's model and on the mean, by the paper's formulas. Reports the honest epsilon with the paper's.

    epsilon: the paper's, of the whole run.
    delta: the paper's, of the whole run.
    clip: C, the largest norm of a client's model (its parameters, not their change).
    sensitivity: 2 C / n_min as in the paper, or 2 C, a bound that holds for SGD too.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    own = NbAFL(epsilon, delta, clip, sensitivity, noise)
    return Mechanism(
        name="nbafl",
        keys=own._asdict(),
        place=2,
        trust="nobody",
        learns=LEARNS,
        work=lambda: Work(update=own.update, release=own.release),
        words=Words(DONE, accounts=ACCOUNTS),
        phase="noise",
        whole=True,
        noise=Noising(noise, own.released, lambda how: delta, for_all_rounds=True, of_rows=True),
        hides=("train_loss", "steps", "flops"),
        figures=own.figures,
        limits=Limits(
            alone="the noise of its server is made for that of its clients and for nothing else",
            why_not=first(no_sum, no_plain_mean, declared("dp")),
            extras=drawn_by(noise),
        ),
    )


def no_plain_mean(algorithm: Algorithm) -> str:
    """Object to any algorithm that does not send the model, train it, return it whole and take the mean."""
    from fedatlas.algorithm import Algorithm, Task, global_model, return_model, take_mean

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
