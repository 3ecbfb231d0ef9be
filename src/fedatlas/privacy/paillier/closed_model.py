"""A model that the server keeps as a ciphertext, and only clients open (P10, P11): the seed's form.

    model of round t = initial model + step / unit (sum over rounds r < t and clients k of W_rk a_rk)

The initial model is known to all. The server holds one ciphertext, the double sum: it multiplies each round's weighted sum into it,
and sends it to the next cohort. The denominator ``unit`` is the same in every round, because the server chooses whole weights W_rk of this
total for those who answered (1 where clients weigh before they encrypt). So nothing is rounded from round to round, and nobody has
to encrypt anew. A slot has room for the sums of all rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from fedatlas.algorithm import Ask, Replies, Update
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import Asking, Place, RoundClosed, weights_of
from fedatlas.privacy.encrypted import encrypted_sum
from fedatlas.privacy.encrypted.cryptosystem import Cryptosystem
from fedatlas.privacy.encrypted.encrypted_sum import collected, encrypted, whole_weights
from fedatlas.privacy.numbers import REALS
from fedatlas.privacy.paillier import cryptosystem
from fedatlas.privacy.paillier.filling import Encryption, paillier, ready, shared
from fedatlas.privacy.protocol import CLOSED, Closed, Doing, Keys, Protocol
from fedatlas.tree import Tree

LEFT = "a client left whose weight the others would have to make up for, and clients weigh before they encrypt"
UNLIKE = "what most clients sent is no change of the model that they were told"


class Room(NamedTuple):
    """The cryptosystem, and the room of a slot: for the weights of how many sums, of how many clients if these weigh."""

    how: Encryption
    system: Cryptosystem
    sums: int
    clients: int

    @property
    def a_sum(self) -> int:
        """The largest total of the weights in one sum."""
        return self.system.unit if self.system.unit > 1 else self.clients

    @property
    def layout(self) -> cryptosystem.Layout:
        """The layout of the sum of all sums. PrivacyError if it does not fit into a slot."""
        return cryptosystem.layout(self.how.key_bits, self.how.bits, self.sums * self.a_sum)


def protocol(how: Encryption, sums: int, clients: int) -> Protocol:
    """Return the protocol of rounds whose model stays closed. Sums that are due before round 1 are opened as without it.

    sums, clients: of the run at most.
    """
    system = paillier(how)
    room = Room(how, system, sums, clients)
    plain = encrypted_sum.protocol(system)
    return plain._replace(
        questions={},
        phases={},
        seal=partial(sealed, room),
        around=partial(around, room),
        fits=lambda clients, hidden: room.layout,
        closed=Closed(partial(opened, room), secret, again),
        before=plain,
    )


def secret(keys: Keys) -> Mapping[str, Any]:
    """Return the key that the parties share, in its plain form."""
    plain: Mapping[str, Any] = keys.session(0, {})["key"]
    return plain


def again(secret: Mapping[str, Any]) -> Keys:
    """Return the parties' keys from the one that they kept."""
    return shared(ready(secret).public, secret)


# ------------------------------------------------------------------------------------------------ the server


def around(room: Room, public: Any, _: str, ask: Ask, place: Place, workers: int = 1) -> Asking:
    """Run a training whose mean nobody opens. The value of the replies is the closed model with the mean of the changes in it."""
    system, layout = room.system, room.layout
    given = weights_of(ask, place, tuple(sorted(ask.to)))
    layouts = {part: [*layout] for part in given} | {REALS: [*system.layout(True, len(ask.to))]}
    arrived = yield from collected(system, public, ask, place, given, layouts, weighed=system.unit > 1)
    if arrived is None:
        return Replies((), None, {})
    clients, most = arrived
    factor = place.mend(clients)("model")
    if system.unit == 1 and factor != 1.0:
        raise RoundClosed(LEFT)
    told, [(group, own)] = ask.messages[clients[0]]["model"], given.items()
    count = most.counts.get(group)
    due = len(told[CLOSED]["ciphertexts"]) if CLOSED in told else layout.plaintexts(numbers_in(told))
    if [*most.form] != ["model"] or most.counts.keys() != {group} or layout.plaintexts(count or 0) != due:
        raise RoundClosed(UNLIKE)
    share = {k: own[k] * factor for k in clients}
    weights = whole_weights(system.unit, share) if system.unit > 1 else dict.fromkeys(clients, 1)
    batches, times = [most.batches[k][group] for k in clients], [weights[k] for k in clients]
    if CLOSED in told:
        held = told[CLOSED]
        batches, times = [cryptosystem.Batch(held["key"], held["ciphertexts"]), *batches], [1, *times]
    total = cryptosystem.weighted_sum(public, batches, times, workers=workers)
    weight = sum(weights.values()) + (told["weight"] if CLOSED in told else 0)
    return Replies(clients, {"model": {CLOSED: total.plain(), "layout": [*layout], "weight": weight}}, {})


def numbers_in(model: Mapping[str, Any]) -> int:
    """Return how many numbers a model holds."""
    return sum(x.numel() for x in model.values())


# ------------------------------------------------------------------------------------------------ the client


def sealed(
    room: Room, update: Update, doing: Doing, word: Mapping[str, Any], session: Any
) -> tuple[Update, Any, Update]:
    """Return the encrypted update, the session, and the update as decoded. ProtocolError for another place in the sum than all have."""
    if word.get("mean") is not True or word.get("sums") != [] or word["layouts"].get("") != [*room.layout]:
        raise ProtocolError("a client is told to encrypt in another form than its experiment's: refused.")
    return encrypted(room.system, update, doing, word, session)


def opened(room: Room, told: Mapping[str, Any], initial: Tree, before: int, session: Any) -> Tree:
    """Return the model behind a ciphertext, in the precision of the ``initial`` one.

    before: sums that can be in it. ProtocolError for what is no sum of this run.
    """
    keys, layout, weight = ready(session["key"]), room.layout, told.get("weight")
    if told.get("layout") != [*layout]:
        raise ProtocolError(
            f"a closed model has other places for its numbers than a run of {room.sums} sums: begin a new run for more rounds."
        )
    if type(weight) is not int or not 0 < weight <= before * room.a_sum:
        raise ProtocolError("a closed model has more or less weight than the rounds before it can have given: refused.")
    count = numbers_in(initial)
    batch = cryptosystem.received(keys.public, told[CLOSED], layout.plaintexts(count))
    codes = cryptosystem.unpack(layout, cryptosystem.decrypt(keys, batch), count, weight)
    change = cryptosystem.dequantise(codes, bits=room.how.bits, range=room.how.range, total=float(room.system.unit))
    out, at = Tree(), 0
    for name, x in initial.items():
        moved = x.double() + x.new_tensor(change[at : at + x.numel()], dtype=x.double().dtype).reshape(x.shape)
        out[name], at = moved.to(x.dtype), at + x.numel()
    return out
