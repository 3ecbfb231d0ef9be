"""A coordinator between parties with columns that lies: what it can make a party say, and what it can make it use.

Before letters were signed a party took points, public keys, ciphertexts and sums as the coordinator told them: each lie here was answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agreements import Agreements
from fedatlas.deployment.trainer import Trainer
from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Request
from fedatlas.federation.signed_letters import SignedLetters
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.secagg.keys import identity
from fedatlas.vertical import align, psi
from fedatlas.vertical.align import IDS
from fedatlas.vertical.ids import ordered, seed_key
from fedatlas.vertical.letters import LETTERS
from fedatlas.wire import messages
from fedatlas.wire.messages import FactsQuestion, Refusal, written
from lying_relay import COMMON, Lie, Relay, experiment, instead, with_letters, write_tables
from nodes_in_process import run_here

ALTERED, OTHER, WORDS = "is not signed by it", "another run, round or attempt", "in other words"
DUE, NONE = "does not ask this party for", "and one was due"


def own_points(relay: Relay, request: Request) -> Any:
    """Masked ids of a list that the relay brings along."""
    points = psi.hashed([f"id-{i:03d}" for i in range(COMMON)], "ed25519")
    return {"points": psi.raised(points, psi.exponent("ed25519"), "ed25519")}


def own_set(sender: str, step: int = 1) -> Any:
    def lie(relay: Relay, request: Request) -> Request:
        return instead(
            request, IDS, lambda one: relay.forged(request, sender, IDS, own_points(relay, request), one["step"])
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
    "the weaker group": Lie("bank", align.MASK, in_words(group="x25519"), WORDS),
    "the other's ids as a party's own": Lie("bank", align.REMASK, in_anothers_name(IDS, "bank"), ALTERED),
    "ids masked once more": Lie("bank", align.REMASK, asking(align.MASK, group="ed25519"), "masked already"),
    "another order": Lie("bank", align.REMASK, asking(align.ORDER), "drawn already"),
    "a digest of all ids": Lie("bank", align.MATCH, asking(align.SAME), DUE),
    "how ids look where most were found": Lie("bank", "split rows", asking(align.LOOK), "says nothing of its ids"),
    "figures of one row": Lie("bank", "split rows", in_words(test=0.001), WORDS),
    "figures of training rows": Lie("bank", "judge", in_words(on="train"), WORDS),
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
    "a party's set for another's": Lie("bank", align.COMPARE, in_anothers_name(IDS, "phone"), ALTERED),
    "nothing to compare": Lie("bank", align.COMPARE, none, NONE),
    "the sets to another party": Lie("shop", align.BACK, asking(align.COMPARE), DUE),
    "answers of its own": Lie("shop", align.MATCH, flipped(align.FLAGS), ALTERED),
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

    def run(self) -> Any:
        signed = self.made.signed("r", experiment(self.made.names))
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
