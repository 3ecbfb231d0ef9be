"""Secure aggregation (P14): the server learns the sum of the clients' updates and no single update. The protocol is in `secure_sum`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Bits, Extra, Learns, Limits, Mechanism, Protection, Trial, Words, Work
from fedatlas.privacy.reasons import HIDING
from fedatlas.privacy.secagg.keys import threshold_of, tolerated
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


def secagg(*, threshold: Share = 2 / 3, bits: Bits = 24, range: Positive = 16.0, n_cap: Whole = 1 << 20) -> Mechanism:
    """The server learns the sum of the clients' updates and no single update. Clients may leave in the middle.

    threshold: share of the clients asked that have to stay until the sum is opened, above 0.5.
    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    n_cap: the most rows of a client, if clients weigh by their rows: a lower cap may halve the bytes.
    """

    def work() -> Work:
        from fedatlas.privacy.secagg.opened_sum import SecureSum
        from fedatlas.privacy.secagg.secure_sum import protocol

        return Work(protocol=protocol(SecureSum(threshold, bits, range, n_cap)))

    def figures(
        how: Protection, rows: Sequence[Any], sizes: Mapping[int, int], events: Sequence[Event]
    ) -> dict[str, Any]:
        return {"withstood": withstood(rows, threshold)}

    return Mechanism(
        name="secagg",
        keys={"threshold": threshold, "bits": bits, "range": range, "n_cap": n_cap},
        place=5,
        trust="nobody",
        learns=LEARNS,
        work=work,
        words=Words(DONE, preview=cap_sentences),
        phase="mask",
        sums_only="wholly",
        hides=("weights", "steps"),
        figures=figures,
        preview=lambda trial: {"n_cap": smaller_words(bits, trial)} if trial.counted else {},
        limits=Limits(why_not=HIDING, deployed=True, extras=(Extra("cryptography", "he"),)),
    )


def withstood(rows: Sequence[Mapping[str, Any]], threshold: float) -> dict[str, int] | None:
    """Return, for the round that asked the fewest clients, how many were asked, were needed, and could have helped a dishonest server.

    None if no client was asked.
    """
    chains = [[who for who in row["clients"] if isinstance(who, list)] for row in rows]
    asked = [len(units) or len(row["selected"]) for row, units in zip(rows, chains, strict=True)]
    fewest = min((m for m in asked if m), default=0)
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
