"""Aggregation by two non-colluding servers (P15): clients split updates into two additive shares. The protocol is in `shared_sum`.

Deviation: in a simulation the first server also asks for the second server's shares. Its own view does not hold them.
"""

from __future__ import annotations

from fedatlas.privacy.mechanism import Bits, Learns, Limits, Mechanism, Words, Work
from fedatlas.privacy.reasons import HIDING
from fedatlas.privacy.secagg.mechanism import cap_sentences, over_cap, smaller_words
from fedatlas.registry import Positive, Whole

LEARNS = Learns(
    "each of the two: uniform words from every client, the sum of a round's updates and that of their rows, and who stayed to its end; "
    "no client's own update",
    "the models, and how many take part",
    "the two servers together read every update: clients trust that they do not collude; one of them with clients learns the sum of "
    "the others' updates",
)
DONE = (
    "<b>Two servers.</b> Every client split its update into two shares, one for each of two servers. Each server added up the shares "
    "that it was sent, and only both totals together gave the sum of a round."
)
TRUST = "The two servers together can read every update. Clients trust that they do not collude; here one process played both."


def two_server(*, bits: Bits = 24, range: Positive = 16.0, n_cap: Whole = 1 << 20) -> Mechanism:
    """Clients split updates between two servers that do not collude. Either learns only the sum; there are no keys.

    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    n_cap: the most rows of a client, if clients weigh by their rows: a lower cap may halve the bytes.
    """

    def work() -> Work:
        from fedatlas.privacy.secagg.hidden_weights import Rounding
        from fedatlas.privacy.two_server.shared_sum import protocol

        return Work(protocol=protocol(Rounding(bits, range, n_cap)))

    return Mechanism(
        name="two_server",
        keys={"bits": bits, "range": range, "n_cap": n_cap},
        place=5,
        trust="servers",
        learns=LEARNS,
        work=work,
        words=Words(DONE, (TRUST,), preview=lambda found: cap_sentences(found, "two_server")),
        phase="share",
        sums_only="wholly",
        hides=("weights", "steps"),
        preview=lambda trial: {"n_cap": smaller_words(bits, trial)} if trial.counted else {},
        limits=Limits(why_not=HIDING, refuses=lambda asked: over_cap("two_server", asked, n_cap)),
    )
