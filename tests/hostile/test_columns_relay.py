"""A coordinator between parties with columns that lies: what it can make a party say, and what it can make it use.

Before letters were signed a party took points, public keys, ciphertexts and sums as the coordinator told them: each lie here was answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from agreements import Agreements
from fedatlas.deployment.audit import verified
from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Request
from fedatlas.federation.signed_letters import SignedLetters
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.secagg.keys import identity
from fedatlas.vertical import align, psi
from fedatlas.vertical.align import IDS
from fedatlas.vertical.ids import digest_of_ids, ordered, seed_key
from fedatlas.vertical.letters import LETTERS
from fedatlas.wire import messages
from fedatlas.wire.messages import FactsQuestion, Refusal, written
from lying_relay import COMMON, LABEL, Lie, Relay, experiment, instead, with_letters, write_tables
from nodes_in_process import run_here

ALTERED, OTHER, WORDS = "is not signed by it", "another run, round or attempt", "in other words"
ALONE = "asked alone and as it is, at most 3 times a round"
DUE, NONE = "does not ask this party for", "and one was due"


def own_points(relay: Relay, request: Request) -> Any:
    """Masked ids of a list that the relay brings along."""
    points = psi.hashed([f"id-{i:03d}" for i in range(COMMON)], "ristretto255")
    return {"points": psi.raised(points, psi.exponent("ristretto255"), "ristretto255")}


def own_set(sender: str) -> Any:
    """The same in a party's name."""

    def lie(relay: Relay, request: Request) -> Request:
        return instead(
            request,
            IDS.topic,
            lambda one: relay.forged(request, sender, IDS.topic, own_points(relay, request), one["step"]),
        )

    return lie


def as_before(relay: Relay, request: Request) -> Request:
    """As a coordinator told them before there were letters."""
    return request._replace(message=own_points(relay, request))


def own_key(relay: Relay, request: Request) -> Request | None:
    """The histogram under the relay's own public key."""
    if request.message[LETTERS][0]["topic"] != "gradients":
        return None
    n = paillier.generate(512, testing=True).public
    fields = {"tree": request.round, "rows": None, "public": n.plain(), "ciphertexts": []}
    return with_letters(request, [relay.forged(request, "bank", "gradients", fields)])


def in_the_clear(relay: Relay, request: Request) -> Request:
    ones = torch.ones(30, dtype=torch.int64)
    fields = {"tree": request.round, "rows": None, "g": ones, "h": ones}
    return with_letters(request, [relay.forged(request, "bank", "gradients", fields)])


def flipped(topic: str) -> Any:
    """One bit of what a party wrote."""

    def change(one: Any) -> Any:
        text = one["text"].clone()
        text[-1] ^= 1
        return {**one, "text": text}

    return lambda relay, request: instead(request, topic, change)


def in_anothers_name(topic: str, name: str) -> Any:
    return lambda relay, request: instead(request, topic, lambda one: {**one, "from": relay.names.index(name)})


def of_the_round_before(topic: str) -> Any:
    def lie(relay: Relay, request: Request) -> Request | None:
        old = relay.letter(topic, round=request.round - 1, client=request.client) if request.round > 1 else None
        return None if old is None else with_letters(request, [old])

    return lie


def of_the_level_before(topic: str, level: int) -> Any:
    """The last level's letter again, once there is another one."""

    def lie(relay: Relay, request: Request) -> Request | None:
        now = [one for one in request.message[LETTERS] if one["topic"] == topic and one["step"] == level]
        old = relay.letter(topic, round=request.round, client=request.client)
        return with_letters(request, [old]) if now and old and old["step"] < level else None

    return lie


def labelled_anew(topic: str, level: int) -> Any:
    """The last level's letter with the number of this one written beside it."""
    old = of_the_level_before(topic, level)

    def lie(relay: Relay, request: Request) -> Request | None:
        found = old(relay, request)
        return found and with_letters(found, [{**one, "step": level} for one in found.message[LETTERS]])

    return lie


def none(relay: Relay, request: Request) -> Request:
    return with_letters(request, [])


def no_letter(relay: Relay, request: Request) -> Request:
    return request._replace(message={**request.message, LETTERS: "none"})


def in_words(**told: Any) -> Any:
    return lambda relay, request: request._replace(message={**request.message, **told})


def with_fields(**fields: Any) -> Any:
    return lambda relay, request: request._replace(**fields)


def asking(what: str, round: int = 0, **told: Any) -> Any:
    """Another question in place of the true one, with its letters, in a round from this one on."""
    message = lambda request: {**told, LETTERS: request.message[LETTERS]}  # noqa: E731
    return lambda relay, request: (
        request._replace(what=what, message=message(request)) if request.round >= round else None
    )


TWO: Mapping[str, Lie] = {
    "an id set of its own": Lie("bank", align.REMASK, own_set("shop"), ALTERED),
    "an id set of its own, to the other": Lie("shop", align.REMASK, own_set("bank"), ALTERED),
    "an id set without a letter": Lie("bank", align.REMASK, as_before, WORDS),
    "points of its own to be matched with": Lie("bank", align.MATCH, own_set("shop"), ALTERED),
    "no id set": Lie("bank", align.REMASK, none, NONE),
    "letters that are none": Lie("bank", align.REMASK, no_letter, "no list"),
    "another group": Lie("bank", align.MASK, in_words(group="x25519"), WORDS),
    "another key": Lie("shop", align.MASK, in_words(key=1), WORDS),
    "the other's ids as a party's own": Lie("bank", align.REMASK, in_anothers_name(IDS.topic, "bank"), ALTERED),
    "ids masked once more": Lie(
        "bank", align.REMASK, asking(align.MASK, group="ristretto255", key=0), "masked already"
    ),
    "another order": Lie("bank", align.REMASK, asking(align.ORDER), "drawn already"),
    "a digest of all ids": Lie("bank", align.MATCH, asking(align.SAME), DUE),
    "how ids look where most were found": Lie("bank", "split rows", asking(align.LOOK), "says nothing of its ids"),
    "figures of one row": Lie("bank", "split rows", in_words(test=0.001), WORDS),
    "figures of training rows": Lie("bank", "judge", in_words(on="train"), WORDS),
    "sums that go on to another party": Lie("shop", "histogram", with_fields(peer=True), ALONE),
    "sums in a sum": Lie("shop", "histogram", with_fields(reduce="mean"), ALONE),
    "sums under a word": Lie("shop", "histogram", with_fields(word={"key": torch.ones(2)}), ALONE),
    "alignment in a later round": Lie("bank", "gradients", asking(align.ORDER), DUE),
    "gains before the end": Lie("bank", "gradients", asking("share gains"), DUE),
    "ways of rows while trees grow": Lie("shop", "histogram", asking("way", step=1), DUE),
    "the label's questions at another": Lie("shop", "histogram", asking("leaves"), DUE),
    "another tree": Lie("bank", "gradients", in_words(tree=9), WORDS),
    "gradients in the clear": Lie("shop", "histogram", in_the_clear, ALTERED),
    "its own public key": Lie("shop", "histogram", own_key, ALTERED),
    "altered ciphertexts of rows": Lie("shop", "histogram", flipped("gradients"), ALTERED),
    "altered ciphertexts of sums": Lie("bank", "open", flipped("sums"), ALTERED),
    "altered rows of a node": Lie("shop", "split", flipped("wanted"), ALTERED),
    "sums in the active party's name": Lie("bank", "open", in_anothers_name("sums", "bank"), ALTERED),
    "gradients of the tree before": Lie("shop", "histogram", of_the_round_before("gradients"), OTHER),
    "sums of the tree before": Lie("bank", "open", of_the_round_before("sums"), OTHER),
    "sums of the level before": Lie("bank", "open", of_the_level_before("sums", 2), NONE),
    "sums of the level before as of this one": Lie("bank", "open", labelled_anew("sums", 2), NONE),
    "leaves of half a tree": Lie("bank", "open", asking("leaves"), "not grown to its end"),
    "a tree on a tree": Lie("bank", "open", asking("gradients", tree=1), "under way already"),
}
THREE: Mapping[str, Lie] = {
    "an id set of its own on its way": Lie("shop", align.PASS, own_set("bank"), ALTERED),
    "an id set of its own to be compared": Lie("bank", align.COMPARE, own_set("shop"), ALTERED),
    "a party's set for another's": Lie("bank", align.COMPARE, in_anothers_name(IDS.topic, "phone"), ALTERED),
    "nothing to compare": Lie("bank", align.COMPARE, none, NONE),
    "the sets to another party": Lie("shop", align.BACK, asking(align.COMPARE), DUE),
    "answers of its own": Lie("shop", align.MATCH, flipped(align.FLAGS.topic), ALTERED),
    "a set once more": Lie("shop", align.BACK, asking(align.PASS), NONE),
    "sums in another's name": Lie("bank", "open", in_anothers_name("sums", "phone"), ALTERED),
}


class Ended:
    """A run to its end through a relay that lied on the way."""

    def __init__(self, folder: Path, names: Sequence[str], lies: Mapping[str, Lie], order: str = "secret") -> None:
        self.made = Agreements(folder, names)
        self.paths = write_tables(folder, names)
        for name in names:
            self.policy(name, f'row_order = "{order}"\n')
        self.trainers = {name: self.made.trainer(name, self.paths[name]) for name in names}
        self.relay = Relay(self.made, self.trainers, lies)

    def policy(self, name: str, text: str) -> None:
        (self.made.paths[name] / "policy.toml").write_text(text)

    def run(self, **tables: Any) -> Any:
        signed = self.made.signed("r", experiment(self.made.names, **tables))
        return run_here(self.made, self.trainers, signed, self.relay)

    def align(self, name: str) -> Any:
        """What the alignment left at a party."""
        run: Any = self.trainers[name].run
        return run.state.party.get(run.number)["align"], run.data


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    made = Ended(tmp_path_factory.mktemp("two"), ["bank", "shop"], TWO)
    made.result = made.run()  # type: ignore[attr-defined]
    return made


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    made = Ended(tmp_path_factory.mktemp("three"), ["bank", "shop", "phone"], THREE)
    made.result = made.run()  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("title", TWO)
def test_a_lie_is_refused(two: Ended, title: str) -> None:
    check(two, title)


@pytest.mark.parametrize("title", THREE)
def test_a_lie_among_three_is_refused(three: Ended, title: str) -> None:
    check(three, title)


def check(ended: Ended, title: str) -> None:
    """It was told, the party says why it does not answer, and the run went on to its end."""
    answer = ended.relay.heard.get(title)
    assert isinstance(answer, Refusal), answer
    assert ended.relay.lies[title].said in answer.why
    state = ended.result.state  # type: ignore[attr-defined]
    assert (state.status, state.why) == ("finished", "")


def test_no_party_answers_in_the_clear(tmp_path: Path) -> None:
    """The experiment says whether gradients are encrypted, and a node works that out, whoever signed it."""
    made = Agreements(tmp_path, ["bank", "shop"])
    config = {**experiment(made.names), "privacy": []}
    for name, path in write_tables(tmp_path, made.names).items():
        node = made.trainer(name, path)
        (answer,) = node.serve(written(FactsQuestion("r", made.signed("r", config))))
        said = messages.read(answer, messages.FROM_TRAINER)
        assert "gradients in the clear reveal every label" in said.why
        assert node.kept[1] is None


def test_a_round_is_begun_three_times_at_most(tmp_path: Path) -> None:
    """Each time another order of sums leaves."""
    lie = Lie("shop", "histogram", with_fields(attempt=3), ALONE)
    made = Ended(tmp_path, ["bank", "shop"], {"once more": lie})
    made.run()
    assert ALONE in made.relay.heard["once more"].why


# ------------------------------------------------------------------------------------------------- the order of rows


def aligned_ids(ended: Ended, name: str) -> list[str]:
    kept, data = ended.align(name)
    return [data.ids[i] for i in kept["order"].numpy()]


@pytest.mark.parametrize("how", ["two", "three"])
def test_the_order_of_rows_is_one_that_only_the_parties_know(how: str, request: pytest.FixtureRequest) -> None:
    """Among all that went through the relay, in any form, its key is not; under the seed, which the relay knows, it is another."""
    ended: Ended = request.getfixturevalue(how)
    names = ended.made.names
    keys = {bytes(ended.align(name)[0]["key"].numpy().tobytes()) for name in names}
    (key,) = keys
    assert len(key) == 32
    assert key not in ended.relay.bytes
    orders = [aligned_ids(ended, name) for name in names]
    assert len(orders[0]) == COMMON
    assert all(one == orders[0] for one in orders)
    known = sorted(orders[0])
    assert orders[0] == [known[i] for i in ordered(known, key)]
    assert orders[0] != [known[i] for i in ordered(known, seed_key(ended.align("bank")[1].seed))]


def test_a_party_that_wants_a_secret_order_takes_no_order_of_the_seed(tmp_path: Path) -> None:
    made = Ended(tmp_path, ["bank", "shop"], {})
    made.policy("bank", 'row_order = "seed"\n')
    state = made.run().state
    assert state.status == "failed"
    assert (
        "'bank' orders the rows by the seed, which the coordinator knows, and 'shop' wants a secret order" in state.why
    )


def test_parties_that_match_nothing_compare_digests_that_the_relay_cannot_guess_at(tmp_path: Path) -> None:
    """It may know the whole list of ids: without the key no digest of it can be checked."""
    made = Ended(tmp_path, ["bank", "shop"], {})
    ids = [f"id-{i:03d}" for i in range(COMMON)]
    for name, path in made.paths.items():
        table = pd.read_csv(path).set_index("id").loc[ids].reset_index()
        table.to_csv(path, index=False)
        made.trainers[name] = made.made.trainer(name, path)
    made.relay.trainers = made.trainers
    state = made.run(align={"name": "none"}).state
    assert (state.status, state.why) == ("finished", "")
    assert aligned_ids(made, "bank") == aligned_ids(made, "shop")
    key = made.align("bank")[0]["key"].numpy().tobytes()
    for told in (digest_of_ids(ids, key), digest_of_ids(ids, seed_key(0))):
        assert told.encode() not in made.relay.bytes


@pytest.mark.parametrize("names", [["bank", "shop"], ["bank", "shop", "phone"]])
def test_rows_that_differ_in_the_case_of_their_ids_are_linked_by_a_second_key(tmp_path: Path, names: list[str]) -> None:
    """Between nodes as in a simulation: the agreement says how ids are normalised, and each node reads its own file by it."""
    made = Ended(tmp_path, names, {})
    table = pd.read_csv(made.paths["shop"])
    some = table["id"].str.match("id-00")
    table.loc[some, "id"] = table.loc[some, "id"].str.upper()
    table.to_csv(made.paths["shop"], index=False)
    made.trainers["shop"] = made.made.trainer("shop", made.paths["shop"])
    made.relay.trainers = made.trainers
    parties = [{"name": name, "path": "own.csv", "id": [["id"], [{"lower": "id"}]]} for name in names]
    parties[0]["label"] = LABEL
    result = made.run(parties=parties)
    assert (result.state.status, result.state.why) == ("finished", "")
    orders = [[one.lower() for one in aligned_ids(made, name)] for name in names]
    assert all(one == orders[0] for one in orders)
    assert sorted(orders[0]) == [f"id-{i:03d}" for i in range(COMMON)]
    for name in names:
        (line,) = [one.said for one in verified(made.made.paths[name]).lines if one.said["kind"] == "agreement"]
        assert line["ids"] == "id, then id (lower)", "each node's own log says how its ids are made"
    assert sum(one.isupper() for one in (x[:2] for x in aligned_ids(made, "shop"))) == 10


# --------------------------------------------------------------------------------------------- how many are asked about


@pytest.mark.parametrize("names", [["bank", "shop"], ["bank", "shop", "phone"]])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("max_ids = 49", "ids of another party = 50, more than 49"),
        ("max_ratio = 0.9", "another party's ids for each own id = 1, more than 0.9"),
    ],
)
def test_a_party_sees_how_many_ids_it_is_asked_about_before_it_answers(
    tmp_path: Path, names: Sequence[str], line: str, said: str
) -> None:
    made = Ended(tmp_path, names, {})
    made.policy("shop", f"{line}\n")
    state = made.run().state
    assert state.status == "failed"
    assert said in state.why
    assert {request.what for request in made.relay.requests} == {align.ORDER, align.MASK} | {
        align.REMASK if len(names) == 2 else align.PASS
    }


# ------------------------------------------------------------------------------------------------------------- letters


def letters_between(count: int) -> list[SignedLetters]:
    keys = [identity() for _ in range(count)]
    public = {k: key for k, (_, key) in enumerate(keys)}
    names = [f"p{k}" for k in range(count)]
    return [SignedLetters(k, names, "d" * 32, private, public) for k, (private, _) in enumerate(keys)]


def request_to(client: int, letters: Sequence[Any], round: int = 1, attempt: int = 0) -> Request:
    return Request("r", round, attempt, 0, client, "match", {LETTERS: list(letters)}, 1.0, 3, 90, "each")


def written_by(sender: SignedLetters, to: Sequence[int], *, secret: bool = False) -> Any:
    plain = {"from": sender.number, "to": list(to), "topic": "ids", "step": 1, "secret": secret, "content": {"n": 7}}
    return sender.sealed(request_to(sender.number, []), {LETTERS: [plain]})[LETTERS][0]


def test_a_letter_is_for_its_run_round_attempt_and_receivers() -> None:
    a, b, c = letters_between(3)
    one = written_by(a, [1])
    assert b.opened(request_to(1, [one])).message[LETTERS][0]["content"] == {"n": 7}
    for other in (request_to(1, [one], round=2), request_to(1, [one], attempt=1)):
        with pytest.raises(ProtocolError, match=OTHER):
            b.opened(other)
    with pytest.raises(ProtocolError, match="for another party"):
        c.opened(request_to(2, [{**one, "to": [2]}]))
    elsewhere = SignedLetters(1, b.names, "e" * 32, b.private, b.identities)
    with pytest.raises(ProtocolError, match=OTHER):
        elsewhere.opened(request_to(1, [one]))


def test_a_secret_letter_is_read_by_its_receivers_alone() -> None:
    a, b, c = letters_between(3)
    one = written_by(a, [1], secret=True)
    assert b.opened(request_to(1, [one])).message[LETTERS][0]["content"] == {"n": 7}
    mine = SignedLetters(1, b.names, b.run, c.private, b.identities)  # who has the letter, and not the key
    with pytest.raises(ProtocolError, match="cannot be opened"):
        mine.opened(request_to(1, [one]))


@pytest.mark.parametrize("field", ["from", "text", "signature"])
@pytest.mark.parametrize("value", [None, 5, True, "x", [], {}, torch.zeros(3), torch.zeros(0, dtype=torch.uint8)])
def test_what_is_no_letter_is_refused_in_one_sentence(field: str, value: Any) -> None:
    a, b, _ = letters_between(3)
    for odd in ({**written_by(a, [1]), field: value}, value):
        with pytest.raises(ProtocolError) as caught:
            b.opened(request_to(1, [odd]))
        assert "\n" not in str(caught.value)
