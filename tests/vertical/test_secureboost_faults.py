"""What crosses between parties that grow trees, and what happens where one of them answers wrongly or leaves (V2)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from boosting_federation import Table, federation_of, parties_of, states_of, trained
from fedatlas.algorithm import Question
from fedatlas.errors import DataError, ProtocolError
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.start import RoundStart
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.vertical import boosting, letters
from fedatlas.vertical.boosting import active, gains, inference, letter_kinds, passive
from fedatlas.vertical.boosting.settings import secureboost
from fedatlas.vertical.parties import PartyLeft, tensor
from fedatlas.vertical.trees import nodes, records
from fedatlas.wire import codec

OWNERS = [[0, 1], [2, 3]]
HOW = secureboost(trees=2, bins=8)
SEALED = HOW._replace(key_bits=256)
LOST = "party 'p1' is lost: its letter 'sums' cannot be used: "


def table(n: int = 60) -> Table:
    """Four columns that matter, a tenth of the values missing."""
    stream = np.random.default_rng(7)
    x = stream.normal(size=(n, 4))
    y = (x[:, 0] + x[:, 2] * x[:, 1] + x[:, 3] > 0).astype(np.float64)
    x[stream.random(x.shape) < 0.1] = np.nan
    return Table(x, y, "classes")


# ------------------------------------------------------------------------------------------------ what crosses


class Wire(Observer):
    """All bytes of what is asked and replied."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes]] = []

    def asked(self, request: Request) -> None:
        self.frames.append((request.what, codec.encode(dict(request.message))))

    def replied(self, request: Request, update: Any) -> None:
        self.frames.append((request.what, codec.encode(dict(update))))

    def has(self, needle: bytes) -> list[str]:
        """The questions whose bytes hold these."""
        return sorted({what for what, data in self.frames if needle in data})


@pytest.mark.timing
@pytest.mark.parametrize("how", [HOW, SEALED], ids=["clear", "encrypted"])
def test_no_name_threshold_id_or_label_crosses(how: boosting.SecureBoost) -> None:
    """Of a whole training, its importances and a prediction: searched as text and as the bytes of a float64."""
    wire, rows = Wire(), table()
    parties = [
        one._replace(
            names=tuple(f"{one.name}-column-{i}" for i in range(2)), ids=tuple(f"id-{i:05d}" for i in range(60))
        )
        for one in parties_of(rows, OWNERS)
    ]
    train = np.arange(0, 60, 2)
    held = columns_federation(parties, boosting.questions(how), states_of(parties, train), observers=[wire])
    server: Any = held.drive(boosting.begin(how, {"names": ["p0", "p1"], "active": 0}), RoundStart(1, 0.0))
    for number in (1, 2):
        server = held.drive(boosting.grow(how, server, number), RoundStart(1 + number, 0.0))
    server = held.drive(boosting.importance(how, server), RoundStart(4, 0.0))
    held.drive(boosting.infer(how, server), RoundStart(5, 0.0))
    assert {what for what, _ in wire.frames} >= {"histogram", "open", "split", "leaves", "importance", "walk", "way"}
    cuts = [cut for k in (0, 1) for cut in records.column_cuts(held.states.get(k)["boost"])]
    thresholds = {float(cut) for one in cuts for cut in one}
    assert len(thresholds) > 20
    needles = [b"-column-", b"id-000", rows.y[train].tobytes(), rows.x[train, 0].tobytes(), rows.x[:, 2].tobytes()]
    needles += [form for cut in thresholds for form in (struct.pack("<d", cut), repr(cut).encode())]
    assert {needle: found for needle in needles if (found := wire.has(needle))} == {}
    assert wire.has(b'"left"')  # the search does find what is there


@pytest.mark.timing
def test_an_encrypted_run_tells_no_gradient_and_no_sum() -> None:
    """What is found in the clear run, as whole numbers of 64 bits, is nowhere in the encrypted one."""
    found = {}
    for name, how in (("clear", HOW), ("sealed", SEALED)):
        wire = Wire()
        trained(table(), OWNERS, how, observers=[wire])
        g, h = gains.gradients(table().y, np.zeros(60), None, gains.MarginUnit("classes"), how)
        fixed = gains.fixed(g, h, how.precision)
        found[name] = wire.has(fixed.g.tobytes()), wire.has(fixed.h.tobytes())
    assert found == {"clear": (["gradients", "histogram"], ["gradients", "histogram"]), "sealed": ([], [])}


@pytest.mark.timing
def test_no_secret_stands_in_a_state() -> None:
    """The key lives in memory alone: what is checkpointed of the active party does not hold its primes."""
    done = trained(table(), OWNERS, SEALED)
    keys = done.federation.party.secrets.kept[0][active.KEY]
    state = codec.encode(dict(done.state(0)))
    for side in keys.sides:
        assert int(side.p).to_bytes(16, "big") not in state
        assert str(int(side.p)).encode() not in state
    assert str(int(keys.sides[0].p)) not in repr(keys)


def test_sums_leave_in_an_order_of_their_own() -> None:
    """Twice the same histogram: the same sums, another order."""
    seen = []
    for _ in range(2):
        wire = Wire()
        trained(table(), OWNERS, HOW._replace(trees=1), observers=[wire])
        reply = next(codec.decode(data) for what, data in wire.frames if what == "histogram" and b'"sums"' in data)
        seen.append(sums_in(reply)["left"][0].numpy())
    first, second = seen
    assert not np.array_equal(first, second)
    assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, second.tolist()))


def test_who_sorts_the_sums_by_their_rows_has_the_order_of_the_bins() -> None:
    """What docs/vertical.md says of the active party: the secret order of sums hides no order within a column."""
    whole, wire = table(), Wire()
    x = np.nan_to_num(whole.x)
    done = trained(Table(x, whole.y, "classes"), [[0, 1, 3], [2]], HOW._replace(trees=1), observers=[wire])
    reply = next(codec.decode(data) for what, data in wire.frames if what == "histogram" and b'"sums"' in data)
    sums = sums_in(reply)["left"][0].numpy()
    fixed = gains.fixed(*gains.gradients(whole.y, np.zeros(60), None, gains.MarginUnit("classes"), HOW), HOW.precision)
    (cuts,) = records.column_cuts(done.state(1)["boost"])
    below = x[:, 2] <= cuts[:, None]  # by cut, in its order
    assert np.array_equal(
        sums[np.argsort(sums[:, 2])], np.stack([below @ fixed.g, below @ fixed.h, below.sum(axis=1)], axis=1)
    )


# ------------------------------------------------------------------------------------------------ wrong answers


def sums_in(reply: Any) -> Any:
    """What a passive party's letter says."""
    return reply["letters"][0]["content"]


def with_sums(reply: Any, sums: Any) -> Any:
    return {**reply, "letters": [{**reply["letters"][0], "content": sums}]}


def misled(how: boosting.SecureBoost, change: Callable[[Any], Any]) -> None:
    """Grows a tree whose passive party's histograms are changed so."""
    asked = dict(boosting.questions(how))
    honest = asked["histogram"].answer

    def answer(*given: Any) -> Any:
        reply, state, session = honest(*given)
        return with_sums(reply, change(dict(sums_in(reply)))), state, session

    asked["histogram"] = Question(answer, stateful=True, shows=("counts", "letters"))
    parties = parties_of(table(), OWNERS)
    held = columns_federation(parties, asked, states_of(parties, np.arange(60)))
    server = held.drive(boosting.begin(how, {"names": ["p0", "p1"], "active": 0}), RoundStart(1, 0.0))
    held.drive(boosting.grow(how, server, 1), RoundStart(2, 0.0))


def fewer(sums: Any) -> Any:
    return {"candidates": sums["candidates"] - 3, "left": [one[:-3] for one in sums["left"]]}


def impossible(sums: Any) -> Any:
    sums["left"][0][0, 2] = 61
    return sums


def first_batch(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def changed(sums: Any) -> Any:
        batch = sums["left"][0][0]
        return {**sums, "left": [[{**batch, "ciphertexts": change(batch["ciphertexts"])}], *sums["left"][1:]]}

    return changed


def noise(ciphertexts: torch.Tensor) -> torch.Tensor:
    stream = np.random.default_rng(0)
    found = tensor(stream.integers(0, 256, ciphertexts.shape, dtype=np.uint8))
    found[:, 0] = 0  # below n^2
    return found


def other_key(sums: Any) -> Any:
    sums["left"][0][0] = {**sums["left"][0][0], "key": "0" * 16}
    return sums


@pytest.mark.parametrize(
    ("how", "change", "said"),
    [
        (HOW, fewer, r"party 'p1' answered with \d+ sums per node, but its bins give \d+"),
        (HOW, lambda s: {**s, "candidates": s["candidates"] + 1}, LOST + r"an entry of 'left' has \d+ entries where"),
        (HOW, lambda s: {**s, "left": [one[1:] for one in s["left"]]}, LOST + "an entry of 'left' has"),
        (HOW, lambda s: {**s, "left": []}, LOST + "'left' has 0 entries where 1 are due"),
        (HOW, lambda s: {**s, "left": ["sums"]}, LOST + "an entry of 'left' is no tensor"),
        (HOW, impossible, "party 'p1' answered with 1 sums that no rows of a node can have"),
        (SEALED, first_batch(noise), LOST),
        (SEALED, first_batch(lambda c: c[:-1]), LOST + r".* arrived where \d+ were due"),
        (SEALED, first_batch(lambda c: c[:, 1:]), LOST + ".* cut short"),
        (SEALED, first_batch(lambda c: c * 0), LOST + ".* not between 0 and n"),
        (SEALED, other_key, LOST + ".* where key"),
        (SEALED, lambda s: {**s, "left": [[]]}, LOST + "an entry of 'left' has 0 entries where 1 are due"),
    ],
    ids=[
        "fewer",
        "more announced",
        "cut",
        "no node",
        "a text",
        "impossible",
        "noise",
        "a ciphertext less",
        "a byte less",
        "zeros",
        "another key",
        "no batch",
    ],
)
def test_wrong_sums_name_the_party_in_one_sentence(how: Any, change: Any, said: str) -> None:
    with pytest.raises(PartyLeft, match=said) as caught:
        misled(how, change)
    assert "\n" not in str(caught.value)


def test_garbage_under_the_right_key_is_no_sum() -> None:
    """A random plaintext is longer than the fields, or larger than the node."""
    found = []

    def forged(sums: Any) -> Any:
        batch = sums["left"][0][0]
        public = found[0]
        plain = [int(np.random.default_rng(i).integers(1 << 62)) << 150 for i in range(len(batch["ciphertexts"]))]
        return {**sums, "left": [[paillier.encrypt(public, plain).plain()], *sums["left"][1:]]}

    asked = dict(boosting.questions(SEALED))
    honest = asked["histogram"].answer

    def answer(how: Any, data: Any, message: Any, state: Any, session: Any) -> Any:
        reply, state, session = honest(how, data, message, state, session)
        found.append(session["boost"]["sums"][0].public)
        return with_sums(reply, forged(dict(sums_in(reply)))), state, session

    asked["histogram"] = Question(answer, stateful=True, shows=("counts", "letters"))
    parties = parties_of(table(), OWNERS)
    held = columns_federation(parties, asked, states_of(parties, np.arange(60)))
    server = held.drive(boosting.begin(SEALED, {"names": ["p0", "p1"], "active": 0}), RoundStart(1, 0.0))
    with pytest.raises(ProtocolError, match=f"{LOST}|party 'p1' answered with"):
        held.drive(boosting.grow(SEALED, server, 1), RoundStart(2, 0.0))


def test_a_split_of_other_rows_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a split of 20 rows arrived in 1 bytes"):
        nodes.moved(nodes.begun(1, 20), [{"nodes": [1], "left": [nodes.bits(np.ones(8, bool))]}])


def test_a_split_that_was_never_offered_is_refused() -> None:
    with pytest.raises(ProtocolError, match="party 'p1' was asked for a split that it never offered"):
        passive._first(np.arange(5), tensor(np.array([5])), "p1")


def test_a_record_of_another_run_is_refused() -> None:
    done = trained(table(), OWNERS, HOW)
    asked = {"records": tensor(np.array([99])), "rows": [tensor(np.arange(3, dtype=np.int32))]}
    message = {"step": 1, "letters": [letters.letter(done.parties[0], [1], letter_kinds.ASKED.topic, asked, 1)]}
    with pytest.raises(ProtocolError, match="party 'p1' was asked for split 99, which is not in its file"):
        inference.way(HOW, None, done.parties[1], message, done.state(1), None)


def test_a_file_of_other_columns_is_refused() -> None:
    done = trained(table(), OWNERS, HOW)
    exported = boosting.export(done.parties[1], done.state(1))
    other = done.parties[1]._replace(names=("u", "v"))
    with pytest.raises(DataError, match=r"the table of 'p1' has no column 'x[23]'"):
        boosting.loaded(other, exported)
    model = boosting.export(done.parties[0], done.state(0))
    with pytest.raises(DataError, match="the model has splits of 'p1'"):
        boosting.loaded(done.parties[0]._replace(parties=("p0", "shop")), model)


# ------------------------------------------------------------------------------------------------ leaving, going on


@pytest.mark.parametrize("what", ["histogram", "split"])
@pytest.mark.parametrize("how", [HOW, SEALED], ids=["clear", "encrypted"])
def test_who_leaves_ends_the_tree_and_the_next_attempt_grows_the_same(how: Any, what: str) -> None:
    """The second tree breaks off; what the first left holds, and grown again it is the tree of an undisturbed run."""
    held, server = federation_of(parties_of(table(), OWNERS), how, np.arange(60))
    server = held.drive(boosting.begin(how, server), RoundStart(1, 0.0))
    server = held.drive(boosting.grow(how, server, 1), RoundStart(2, 0.0))
    before = [codec.encode(dict(held.states.get(k))) for k in (0, 1)]
    with pytest.raises(PartyLeft, match=f"party 'p1' left when it was asked for '{what}'"):
        held.drive(boosting.grow(how, server, 2), RoundStart(3, 0.0, leaving={1: what}))
    held.server.commit(3, ())
    assert [codec.encode(dict(held.states.get(k))) for k in (0, 1)] == before
    held.drive(boosting.grow(how, server, 2), RoundStart(3, 0.0))
    expected = trained(table(), OWNERS, how)
    assert [codec.encode(dict(held.states.get(k))) for k in (0, 1)] == [
        codec.encode(dict(expected.state(k))) for k in (0, 1)
    ]


def test_a_new_process_makes_a_new_key_and_grows_the_same_trees() -> None:
    """Resume: what was kept in memory alone is gone."""
    held, server = federation_of(parties_of(table(), OWNERS), SEALED, np.arange(60))
    server = held.drive(boosting.begin(SEALED, server), RoundStart(1, 0.0))
    server = held.drive(boosting.grow(SEALED, server, 1), RoundStart(2, 0.0))
    memory: Any = held.party.secrets
    first = memory.kept.pop(0)[active.KEY].public
    held.drive(boosting.grow(SEALED, server, 2), RoundStart(3, 0.0))
    assert memory.kept[0][active.KEY].public != first
    assert boosting.outputs(held.states.get(0)).tolist() == trained(table(), OWNERS, HOW).outputs.tolist()
