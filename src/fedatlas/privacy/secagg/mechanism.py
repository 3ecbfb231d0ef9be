"""Secure aggregation (P14): the server learns the sum of the clients' updates and no single update. The protocol is in `secure_sum`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from fedatlas.errors import ConfigError
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Asked, Bits, Extra, Learns, Limits, Mechanism, Protection, Trial, Words, Work
from fedatlas.privacy.reasons import HIDING
from fedatlas.privacy.secagg import graph
from fedatlas.privacy.secagg.keys import neighbours_of, threshold_of, tolerated
from fedatlas.registry import Positive, Whole
from fedatlas.wording import bytes_text, count

Share = Annotated[float, Field(gt=0.5, le=1)]
FEWEST_BITS = 12  # with fewer a value is too coarse for a recommendation

LEARNS = Learns(
    "the sum of a round's updates and that of their rows, and who stayed to its end; no client's own update",
    "the models, and who else takes part",
    "the server with clients learns the sum of the others' updates; single ones only with a share of the clients of "
    "2 threshold - 1 or more (a third by default)",
)
DONE = (
    "<b>Secure aggregation.</b> Every client covered its update with random masks that cancel in the sum of a round: the sum can "
    "be read, a single update cannot."
)


SPARSE = LEARNS._replace(
    colluding="the server, if it keeps the rules, with up to a tenth of the clients learns the sum of the others' updates"
)
KEEPS = (
    "With neighbours a server that breaks the rules is not covered: each client shares masks with some others only, and the server "
    "says with whom."
)
UNDEPLOYED = (
    "privacy.secagg.neighbours: a sparse graph of masks covers only a server that keeps the rules, so it runs in simulations; "
    "remove the key."
)


def secagg(
    *,
    threshold: Share = 2 / 3,
    bits: Bits = 24,
    range: Positive = 16.0,
    n_cap: Whole = 1 << 20,
    neighbours: Whole | Literal["auto"] | None = None,
) -> Mechanism:
    """The server learns the sum of the clients' updates and no single update. Clients may leave in the middle.

    threshold: share of the clients asked that have to stay until the sum is opened, above 0.5.
    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    n_cap: the most rows of a client, if clients weigh by their rows: a lower cap may halve the bytes.
    neighbours: clients with which each shares masks, an even number; "auto": all others up to 100, above the fewest that fail with a
        chance of at most 2^-40. Left out: all others, 100 clients at most. In simulations, against a server that keeps the rules.
    """
    check_even(neighbours)

    def work() -> Work:
        from fedatlas.privacy.secagg.opened_sum import SecureSum
        from fedatlas.privacy.secagg.secure_sum import protocol

        return Work(protocol=protocol(SecureSum(threshold, bits, range, n_cap, neighbours)))

    def figures(
        how: Protection, rows: Sequence[Any], sizes: Mapping[int, int], events: Sequence[Event]
    ) -> dict[str, Any]:
        if neighbours is not None and (sparse := scattered(rows, threshold, neighbours)):
            return {"sparse": sparse}
        return {"withstood": withstood(rows, threshold)}

    def refuses(asked: Asked) -> str:
        usual = asked.size or int(asked.fraction * asked.clients)
        few = too_few(neighbours, usual, threshold) if isinstance(neighbours, int) and usual else ""
        return few or over_cap("secagg", asked, n_cap)

    return Mechanism(
        name="secagg",
        keys={"threshold": threshold, "bits": bits, "range": range, "n_cap": n_cap, "neighbours": neighbours},
        place=5,
        trust="nobody" if neighbours is None else "clients",
        learns=LEARNS if neighbours is None else SPARSE,
        work=work,
        words=Words(DONE, () if neighbours is None else (KEEPS,), preview=cap_sentences),
        phase="mask",
        sums_only="wholly",
        hides=("weights", "steps"),
        figures=figures,
        preview=lambda trial: {"n_cap": smaller_words(bits, trial)} if trial.counted else {},
        limits=Limits(
            why_not=HIDING,
            refuses=refuses,
            deployed=neighbours is None,
            undeployed="" if neighbours is None else UNDEPLOYED,
            extras=(Extra("cryptography", "he"),),
        ),
    )


def check_even(neighbours: int | str | None) -> None:
    """Raise ConfigError for an odd number of neighbours."""
    if isinstance(neighbours, int) and neighbours % 2:
        raise ConfigError(
            f"privacy.secagg.neighbours = {neighbours}: expected an even number, as many to either side; {neighbours + 1} would do."
        )


def too_few(neighbours: int, asked: int, threshold: float) -> str:
    """Return the objection to so few neighbours that a session would fail with a chance above 2^-40; "" if there is none."""
    leaving = asked - threshold_of(asked, threshold)
    each = neighbours_of(neighbours, asked, asked - leaving)
    if not each or graph.chances(asked, leaving, graph.degree_of(asked, leaving, each)).small:
        return ""
    found = graph.smallest(asked, leaving)
    advice = "leave the key out" if found is None else f"{found.neighbours} are enough"
    return (
        f"privacy.secagg.neighbours = {neighbours}: too few for {asked} clients, of whom a tenth may collude and {leaving} leave "
        f"(threshold): a session would fail with a chance above 2^-40; {advice}."
    )


def scattered(rows: Sequence[Mapping[str, Any]], threshold: float, neighbours: int | Literal["auto"]) -> dict[str, int]:
    """Return the sparse graph of masks of the round that asked the most clients; empty if all shared masks with all.

    It says how many were asked, share masks with each, rebuild a secret, may leave and may collude.
    """
    asked = max(asked_in(rows), default=0)
    needed = threshold_of(asked, threshold)
    if not asked or not (each := neighbours_of(neighbours, asked, needed)):
        return {}
    degree = graph.degree_of(asked, asked - needed, each)
    return {"asked": asked, **degree._asdict(), "leaving": asked - needed, "colluding": graph.colluding(asked)}


def asked_in(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return how many clients, or superclients, each round asked; rounds that asked nobody are left out."""
    chains = [[who for who in row["clients"] if isinstance(who, list)] for row in rows]
    asked = (len(units) or len(row["selected"]) for row, units in zip(rows, chains, strict=True))
    return [m for m in asked if m]


def over_cap(name: str, asked: Asked, n_cap: int) -> str:
    """Return the objection to a cap of rows that the largest client exceeds; "" if none does."""
    if asked.largest <= n_cap:
        return ""
    return (
        f"privacy.{name}.n_cap = {n_cap}: a client has {asked.largest} training rows, by which it weighs; "
        f"n_cap = {1 << (asked.largest - 1).bit_length()} would do."
    )


def withstood(rows: Sequence[Mapping[str, Any]], threshold: float) -> dict[str, int] | None:
    """Return, for the round that asked the fewest clients, how many were asked, were needed, and could have helped a dishonest server.

    None if no client was asked.
    """
    fewest = min(asked_in(rows), default=0)
    if not fewest:
        return None
    needed = threshold_of(fewest, threshold)
    return {"asked": fewest, "needed": needed, "colluding": tolerated(fewest, needed)}


def smaller_words(bits: int, trial: Trial) -> dict[str, Any]:
    """Return the n_cap with which words of 32 bits suffice, at these bits or at the most bits at which the largest client still fits."""
    from fedatlas.privacy.secagg.fixed import largest_cap

    fitting = bits
    if largest_cap(trial.parties, bits) < trial.largest:
        fewer = reversed(range(FEWEST_BITS, bits))
        fitting = next((b for b in fewer if largest_cap(trial.parties, b) >= trial.largest), 0)
    fits = {"n_cap": largest_cap(trial.parties, fitting), "bits": fitting} if fitting else {}
    saved = 4 * trial.counted * trial.parties
    return {"saves_per_round": saved, "now": bits, "at_these_bits": largest_cap(trial.parties, bits), **fits}


def cap_sentences(preview: Mapping[str, Any], name: str = "secagg") -> list[str]:
    """Return sentences about the savings of a lower n_cap."""
    if "n_cap" not in preview:
        return []
    found = preview["n_cap"]
    saved = f"save {bytes_text(found['saves_per_round'])} a round, since words of 32 bits would do"
    if found.get("bits") == found["now"]:
        return [f"privacy.{name}.n_cap = {found['n_cap']} would {saved}."]
    most = f"{count(found['at_these_bits'], 'row')} a client" if found["at_these_bits"] else "not a single row"
    why = f"At {found['now']} bits words of 32 bits hold {most}, which is too few here"
    if "bits" not in found:
        return [f'{why}: algorithm.weights = "uniform", where the algorithm has it, would {saved}.']
    return [f"{why}: privacy.{name}.bits = {found['bits']} with n_cap = {found['n_cap']} would {saved}."]
