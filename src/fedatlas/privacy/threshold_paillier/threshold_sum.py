"""The protocol around an ask under a key in shares (P17): the sum of encrypted updates, with a table that all clients check and sign.

Each client is told what all are told (`secagg.head`): digests of the work, weights, budgets. It compares its line with its request, signs
its ciphertexts together with the table, and later opens only a sum of ciphertexts that all clients signed with the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fedatlas.algorithm import Ask, Message, Replies, Update
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import SEND, SESSION, Asking, Place
from fedatlas.privacy.encrypted import encrypted_sum
from fedatlas.privacy.encrypted.client_word import check_word
from fedatlas.privacy.encrypted.cryptosystem import Cryptosystem
from fedatlas.privacy.encrypted.encrypted_sum import CIPHER
from fedatlas.privacy.paillier import knowledge
from fedatlas.privacy.paillier.threshold import key_share
from fedatlas.privacy.protocol import Doing, Protocol, Weighed
from fedatlas.privacy.secagg.head import Known, at, digest_of, line_told
from fedatlas.privacy.secagg.keys import FEWEST, SIGNATURE, sign
from fedatlas.privacy.secagg.messages import table
from fedatlas.privacy.secagg.secure_sum import weighty
from fedatlas.privacy.threshold_paillier.cryptosystem import Threshold, party_of, system
from fedatlas.privacy.threshold_paillier.opening import SEALED, SHARE
from fedatlas.privacy.threshold_paillier.statement import WITNESS, Due, base_in, due_in, due_of

OTHERWISE = "client {} is told something else than the table that all get says of it: refused."


def protocol(how: Threshold) -> Protocol:
    """Return the protocol with these keys."""
    made = system(how)
    return encrypted_sum.protocol(made)._replace(
        seal=partial(sealed, made),
        around=partial(around, made),
        fewest=FEWEST,
        everybody=True,
        check=check_asked,
        weighed=partial(weighed, made),
        cohort=cohort,
        copied=copied,
    )


# ------------------------------------------------------------------------------------------------ the client


def check_asked(asked: Any, session: Mapping[str, Any], known: Known) -> None:
    """Raise ProtocolError if a sum is asked for another round than it is of, or if its table contradicts the ask.

    ``asked`` is a `federation.link.Request`. ``known`` holds digests of what others were told in the same process.
    """
    working = asked.word is not None and asked.word[SEND]
    if asked.what != SHARE and not working:
        return
    due = due_in(asked.word.get(SESSION) if working else asked.message)
    if (due.run, due.round, due.attempt) != (asked.run, asked.round, asked.attempt):
        raise ProtocolError(
            f"the sum of round {due.round} of '{due.run[:80]}' is asked for in round {asked.round} of '{asked.run}': refused."
        )
    if working:
        line = _line(due, session["client"])
        if (line["told"], line["budget"], line["lr"]) != line_told(asked, known):
            raise ProtocolError(OTHERWISE.format(session["client"]))


def _line(due: Due, client: int) -> dict[str, Any]:
    if client not in due.clients:
        raise ProtocolError(f"client {client} was asked to take part in a sum that it does not stand in.")
    return due.head.line(due.clients.index(client))


def sealed(
    made: Cryptosystem, update: Update, doing: Doing, word: Mapping[str, Any], session: Any
) -> tuple[Update, Any, Update]:
    """Return the encrypted update with signatures, the session, and the update as decoded. ``update`` holds changes, noise included."""
    if not word[SEND]:
        return encrypted_sum.encrypted(made, update, doing, word, session)
    due, me = due_in(word.get(SESSION)), session["client"]
    line = _line(due, me)
    told = {part: [1.0 if made.unit > 1 and due.head.mean else x, x] for part, (_, x, _) in line["weights"].items()}
    weights = {part: [part, *x] for part, x in told.items()}
    own = {"weights": weights, "mean": due.head.mean, "sums": [*due.head.sums], "layouts": layouts(made, due)}
    if due.ask != doing.what or digest_of(own) != digest_of({name: word[name] for name in own}):
        raise ProtocolError(OTHERWISE.format(me))
    sent, session, seen = encrypted_sum.encrypted(made, update, doing, word, session)
    return (*signed(due, sent, session), seen)


def layouts(made: Cryptosystem, due: Due) -> dict[str, list[Any]]:
    """Return where the numbers of a sum stand in its plaintexts, by the table that all clients sign.

    Places of its own would keep a client's numbers apart from the others' in the opened sum.
    """
    given = {part: {k: at(x, i) for i, k in enumerate(due.clients)} for part, (_, x) in due.head.weights.items()}
    return encrypted_sum.layouts_of(made, encrypted_sum.integers_of(made.unit if due.head.mean else 1, given))


def signed(due: Due, sent: Update, session: Any) -> tuple[Update, Any]:
    """Return ciphertexts with the party's signatures and proofs, and the session, which remembers what was signed."""
    party, ciphers, said = party_of(session), {}, {}
    public, base = key_share(session["key"]).public, base_in(session)
    for group, made in sent[CIPHER].items():
        own = {name: x for name, x in made.items() if name != WITNESS}
        text = due.statement(party.federation, party.client, group, own)
        proof = knowledge.proof(public, made[WITNESS], text, base)
        ciphers[group] = {**own, "signature": table([sign(party, text)], SIGNATURE), "proof": proof}
        said[group] = text.hex()
    return {**sent, CIPHER: ciphers}, {**session, SEALED: said}


def copied(sent: Update, word: Mapping[str, Any], session: Any) -> tuple[Update, Any]:
    """Return as many ciphertexts as another client sent, for a dry run: all 1, which is 0 encrypted without randomness."""
    ciphers = {}
    for group, own in sent[CIPHER].items():
        ones = torch.zeros_like(own["ciphertexts"])
        ones[:, -1] = 1
        known = knowledge.Witness([0] * len(ones), [0] * len(ones))
        ciphers[group] = {"key": own["key"], "ciphertexts": ones, "count": own["count"], WITNESS: known}
    return signed(due_in(word[SESSION]), {**sent, CIPHER: ciphers}, session)


def weighed(made: Cryptosystem, word: Mapping[str, Any], due: Weighed) -> bool:
    """Whether a word weighs a sum as ``due``: equal weights are equal, and a sum is no mean. Weights by rows are not known to a client.

    ProtocolError if the word cannot be read.
    """
    check_word(made, word)
    if not word[SEND]:
        return True
    head = due_in(word.get(SESSION)).head
    alike = [len(x) == 1 for part, (_, x) in head.weights.items() if not due.mean or due.way(part) == "equal"]
    return (head.mean, head.sums) == (due.mean, due.sums) and all(alike)


def cohort(what: str, message: Message, session: Any) -> tuple[int, ...] | None:
    """Return the clients of a sum that a party opens; None for any other question."""
    return due_in(message).clients if what == SHARE else None


# ------------------------------------------------------------------------------------------------ the server


def around(made: Cryptosystem, public: Any, federation: str, ask: Ask, place: Place, workers: int = 1) -> Asking:
    """Run an ask of which only the sum is ever decrypted, by all holders of the key together, and return the replies."""
    due = due_of(ask, place)
    weighty(due.head.pulls(len(due.clients)), tuple(range(len(due.clients))))
    protocol = encrypted_sum.around(made, public, federation, ask, place, workers)
    work = next(protocol)
    told = due.plain()
    replies = yield work._replace(words={k: {**word, SESSION: told} for k, word in work.words.items()})
    while True:
        try:
            asked = protocol.send(replies)
        except StopIteration as end:
            found: Replies = end.value
            return found
        replies = yield asked
