"""A server that lies under masks: it tells clients different things, and is told no update that stands alone (Bonawitz et al. 2017)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.algorithm import Budget
from fedatlas.deployment.node_keys import NodeKeys
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.federation import expected
from fedatlas.federation.link import Request
from fedatlas.federation.secrets import Keyring
from fedatlas.privacy.ask_protocol import SESSION
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.mechanisms import secagg
from fedatlas.privacy.protocol import Insists
from fedatlas.privacy.secagg import client, head, keys, messages, server
from fedatlas.privacy.secagg.secure_sum import AGREE, KEYS, QUESTIONS, SHARES, UNMASK
from federation import play, same
from protected import ALL, protected, rekeyed
from secagg_sessions import HEAD, RUN, crossed, drawn, hold, parties, plain

pytestmark = pytest.mark.timing

List = tuple[int, ...]


class Lied:
    """A session of which each position may be told something else: whom it takes to have ``advertised``, to have ``shared``, its head."""

    def __init__(
        self,
        m: int,
        advertised: Mapping[int, List] = {},
        shared: Mapping[int, List] = {},
        heads: Mapping[int, head.Head] = {},
        threshold: float = 2 / 3,
    ) -> None:
        self.words, self.every = drawn(3, m, 4), tuple(range(m))
        self.cohort, self.shared, self.heads = tuple(self.words), shared, heads
        self.party = parties(self.cohort)
        place = keys.place_of(*RUN, self.cohort, threshold)
        first = {k: client.advertise(messages.told(place), self.party[k], threshold) for k in self.cohort}
        replies = [(k, reply) for k, (reply, _) in first.items()]
        told, transcript, _ = server.keys_heard(place, replies, self.party[self.cohort[0]].public)
        self.second = {
            k: client.share({**told[k], **self._present(advertised.get(v))}, first[k][1], self.party[k])
            for v, k in enumerate(self.cohort)
        }
        replies = [(k, reply) for k, (reply, _) in self.second.items()]
        each, transcript, _ = server.shares_heard(transcript, replies)
        self.each, self.transcript = server.headed(each, transcript, HEAD)
        self.known: dict[Any, Any] = {}

    def _present(self, positions: List | None) -> dict[str, torch.Tensor]:
        return {"present": messages.flags(self.every if positions is None else positions, len(self.every))}

    def masked(self, v: int, members: List | None = None) -> tuple[Any, Any]:
        """What a client sends that is told these members, and its session afterwards."""
        members = self.shared.get(v, self.every) if members is None else members
        if (v, members) not in self.known:
            k = self.cohort[v]
            told = {**self.each[k], **self._present(members), "head": self.heads.get(v, HEAD).plain()}
            self.known[v, members] = client.mask(self.words[k], client.receive(crossed(told), self.second[k][1]))
        return self.known[v, members]

    def signed(self, v: int, survivors: List, members: List | None = None) -> tuple[torch.Tensor, Any]:
        """What a client signs of a list, and its session afterwards."""
        message = {"survivors": messages.flags(survivors, len(self.cohort))}
        reply, session = client.agree(message, self.masked(v, members)[1], self.party[self.cohort[v]])
        return reply["signature"], session

    def unmasked(self, v: int, session: Any, signatures: Mapping[int, torch.Tensor]) -> Any:
        """A client's shares, asked for with these signatures."""
        m = len(self.cohort)
        table = torch.stack([signatures.get(u, torch.zeros(64, dtype=torch.uint8)) for u in range(m)])
        message = {"signatures": table, "signed": messages.flags(signatures, m)}
        return client.unmask(message, session, self.party[self.cohort[v]], {})[0]

    def opened(self, survivors: List, replies: Mapping[int, Any]) -> Any:
        """The sum over these clients, as the server makes it of what it was given."""
        heard = server.MaskedSum(self.transcript)
        for v in survivors:
            heard.add(self.cohort[v], self.masked(v)[0])
        return server.opened(heard.close()[1], [(self.cohort[v], reply) for v, reply in replies.items()])[0]["x"]


def gives(lied: Lied, v: int, session: Any, signatures: Mapping[int, torch.Tensor]) -> bool:
    try:
        lied.unmasked(v, session, signatures)
    except ProtocolError as error:
        if "agree on the sum" not in str(error):
            raise
        return False
    return True


# ---------------------------------------------------------------------- the exhaustive small case


def parts(n: int, kinds: int) -> Iterator[tuple[int, ...]]:
    """Every way to put n clients that are alike into so many kinds."""
    for bars in itertools.combinations(range(n + kinds - 1), kinds - 1):
        yield tuple(b - a - 1 for a, b in itertools.pairwise((-1, *bars, n + kinds - 1)))


def two_lists(m: int, c: int) -> Iterator[tuple[List, List, List, List]]:
    """(list A, list B, honest clients that are told A, told B), up to names; the last c positions are the server's helpers.

    An honest client stands in both lists and is told one, or in one and is told it; a helper in both, in one, in none.
    """
    for honest in parts(m - c, 5):
        kinds = [kind for kind, many in zip(("aA", "aB", "A", "B", ""), honest, strict=True) for _ in range(many)]
        for helping in parts(c, 4):
            own = [kind for kind, many in zip(("a", "A", "B", ""), helping, strict=True) for _ in range(many)]
            where = [*kinds, *own]
            in_a, in_b = (tuple(v for v in range(m) if where[v] and where[v][0] in ("a", x)) for x in "AB")
            told = (tuple(v for v in range(m - c) if where[v].endswith(x)) for x in "AB")
            yield in_a, in_b, *told


def with_members(a: List, b: List, every: List) -> set[tuple[List, List]]:
    """The lists of those who shared that go with two lists of survivors: the same for both, or what sets them apart."""
    return {(every, every), (every, b), (a, every), (a, b)} - ({(every, every), (a, b)} if a == b else set())


@pytest.mark.parametrize("m", [5, 6, 7, 8])
def test_two_sums_are_opened_only_with_so_many_helpers(m: int) -> None:
    """Every two lists of survivors that a server could tell subsets of m clients: both are opened iff c >= 2 t - m.

    Signatures and refusals are those of the real client functions; whoever opens a list is asked with all signatures that there are.
    """
    lied, t = Lied(m), keys.threshold_of(m)
    signed = cache(lied.signed)

    @cache
    def opens(v: int, survivors: List, members: List, signers: List) -> bool:
        signatures = {u: signed(u, survivors, members)[0] for u in signers}
        return gives(lied, v, signed(v, survivors, members)[1], signatures)

    for c in range(m - 1):
        both = 0
        for a, b, told_a, told_b in two_lists(m, c):
            if min(len(a), len(b)) < t or not (told_a and told_b):
                continue
            helpers = range(m - c, m)
            for members in with_members(a, b, lied.every):
                both += all(
                    opens(told[0], survivors, shared, (*told, *(v for v in helpers if v in survivors)))
                    for survivors, told, shared in zip((a, b), (told_a, told_b), members, strict=True)
                )
        assert bool(both) == (c >= 2 * t - m), (m, t, c)
        assert c >= 2 * t - m or c <= keys.tolerated(m, t)


def test_at_the_bound_two_sums_show_one_update() -> None:
    """With one helper more than is withstood the difference of two opened sums is one client's update: the bound is tight."""
    lied = Lied(6)  # t = 5: 2 t - m = 4 helpers, 2..5
    every, without = tuple(range(6)), tuple(range(1, 6))
    found = []
    for survivors, honest in ((every, 0), (without, 1)):
        signed = {v: lied.signed(v, survivors) for v in (honest, 2, 3, 4, 5)}
        signatures = {v: signature for v, (signature, _) in signed.items()}
        replies = {v: lied.unmasked(v, session, signatures) for v, (_, session) in signed.items()}
        found.append(lied.opened(survivors, replies))
    assert np.array_equal(found[0] - found[1], lied.words[lied.cohort[0]]["x"])


def test_a_short_list_of_members_for_one_and_other_survivors_for_the_others() -> None:
    """As many helpers as are withstood (3 of 10), and every split of the honest: two statements never have t signatures.

    Client 0 is told that seven advertised and shared; of the others some are told the same, some that client 0 did not. Without the
    signatures its update was open to two helpers.
    """
    m, t, c = 10, 7, 3
    short, rest = (*range(t - c), *range(m - c, m)), tuple(range(1, m))
    lied, helpers, seen = Lied(m, {0: short}), range(m - c, m), []
    for in_short in range(1, t - c + 1):
        opened = 0
        for who, people in ((range(in_short), short), (range(in_short, m - c), rest)):
            signed = {v: lied.signed(v, people, people) for v in who}
            text = keys.statement(lied.transcript.tag, people, people, HEAD.digest())
            helped = {v: messages.table([keys.sign(lied.party[lied.cohort[v]], text)], 64) for v in helpers}
            signatures = {**helped, **{v: signature for v, (signature, _) in signed.items()}}
            opened += any(gives(lied, v, session, signatures) for v, (_, session) in signed.items())
        seen.append(opened)
    assert seen == [1, 1, 1, 1]


# ---------------------------------------------------------------------- signatures


def only(phase: str, who: int, change: Callable[[Any], Any]) -> Callable[[str, int, Any], Any]:
    return lambda p, w, message: change(message) if (p, w) == (phase, who) else message


def test_shares_are_given_on_t_signatures_over_the_same_alone() -> None:
    words = drawn(5, 6, 2)  # t = 5
    old = hold(words, place=(*RUN[:3], 1, 0)).down["unmask"][1]
    few = lambda x: {**x, "signed": x["signed"] & (torch.arange(6) < 4)}  # noqa: E731
    forged = lambda x: {**x, "signatures": x["signatures"].roll(1, 0)}  # noqa: E731
    for change, count in (
        (few, 4),
        (forged, 0),
        (lambda x: old, 0),
        (lambda x: {**x, "signatures": x["signatures"] ^ 1}, 0),
    ):
        with pytest.raises(ProtocolError, match=f"says that {count} clients agree on the sum; client 1 goes on with 5"):
            hold(words, told=only("unmask", 1, change))


def test_who_is_not_in_the_sum_signs_nothing_and_counts_for_nothing() -> None:
    lied = Lied(6)
    survivors = tuple(range(5))
    with pytest.raises(ProtocolError, match="this client is not among the survivors"):
        lied.signed(5, survivors)
    signed = {v: lied.signed(v, survivors) for v in range(5)}
    signatures = {v: signature for v, (signature, _) in signed.items() if v != 4}
    text = keys.statement(lied.transcript.tag, tuple(range(6)), survivors, HEAD.digest())
    signatures[5] = messages.table([keys.sign(lied.party[lied.cohort[5]], text)], 64)  # a helper that had left
    assert not gives(lied, 0, signed[0][1], signatures)
    assert gives(lied, 0, signed[0][1], {**signatures, 4: signed[4][0]})


# ---------------------------------------------------------------------- heads


def test_masks_cancel_only_among_clients_that_were_told_the_same() -> None:
    """Client 3 is told another head than the five that sign and open: what the server then makes of it is noise."""
    lied = Lied(6, heads={3: HEAD._replace(lr=9.0)})
    every = tuple(range(6))
    signed = {v: lied.signed(v, every) for v in every}
    signatures = {v: signature for v, (signature, _) in signed.items()}
    assert not gives(lied, 3, signed[3][1], signatures)
    replies = {v: lied.unmasked(v, session, signatures) for v, (_, session) in signed.items() if v != 3}
    others = plain(lied.words, [lied.cohort[v] for v in every if v != 3])
    found = lied.opened(every, replies)
    assert not (found - others == lied.words[lied.cohort[3]]["x"]).any()
    honest = Lied(6)
    signed = {v: honest.signed(v, every) for v in every}
    signatures = {v: signature for v, (signature, _) in signed.items()}
    replies = {v: honest.unmasked(v, session, signatures) for v, (_, session) in signed.items()}
    assert np.array_equal(honest.opened(every, replies), plain(honest.words, list(honest.cohort)))


@pytest.mark.parametrize(
    "lie",
    [
        {"weights": {"": ("told", (0.0, 0.0, 0.0, 1.0, 0.0))}},
        {"weights": {"": ("told", (0.01, 0.01, 0.01, 1.0, 0.01))}},
        {"weights": {"model": ("told", (1.0,)), "c": ("told", (0.0, 0.5, 0.0, 0.5, 0.0))}},
        {"budgets": ([0, None, None, 0], [None, 0, None, 0], [None, None, 0, 0], None, [0, None, None, 0])},
        {"budgets": ([-1, None, None, 0], [0, None, None, 0], [None, -3, None, 0], None, [0, 5, None, 0])},
        {"budgets": ([0, None, None, 0],), "weights": {"": ("told", (0.0, 0.0, 0.0, 1.0, 0.0))}},
    ],
)
def test_a_head_under_which_one_update_would_stand_alone_is_refused_by_all(lie: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="too few of those in the sum have a weight in it; client 1 goes on with 3"):
        Lied(5, heads={0: HEAD._replace(**lie)}).masked(0)


def test_those_with_a_weight_are_counted_among_the_survivors() -> None:
    """Four of six have a weight, and a list without two of these is signed by nobody."""
    table = HEAD._replace(weights={"": ("told", (1.0, 1.0, 1.0, 1.0, 0.0, 0.0))})
    lied = Lied(6, heads=dict.fromkeys(range(6), table), threshold=0.51)
    lied.signed(1, (1, 2, 3, 4, 5))
    with pytest.raises(ProtocolError, match="too few of those in the sum"):
        lied.signed(2, (2, 3, 4, 5))


def test_a_table_that_is_none_is_refused() -> None:
    good = HEAD.plain()
    assert head.head_of(crossed(good), 5) == HEAD
    nan = {"": ["told", torch.tensor([1.0, float("nan"), 1, 1, 1], dtype=torch.float64)]}
    for bad in (None, 7, {}, {**good, "budgets": [None] * 4}, {**good, "weights": {}}, {**good, "weights": nan}):
        with pytest.raises(ProtocolError, match="table of what each client is told is cut short"):
            head.head_of(bad, 5)


def test_the_digest_of_a_value_is_that_of_its_content() -> None:
    value = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "mu": 0.5, "names": ["a", "b"], "none": None}
    assert head.digest_of(value) == head.digest_of(crossed(dict(reversed(value.items()))))
    w = value["model"]["w"]
    others = [
        {**value, "mu": 1},
        {**value, "mu": "0.5"},
        {**value, "names": ["a"]},
        {**value, "model": {"v": w}},
        *({**value, "model": {"w": x}} for x in (w.double(), w.reshape(3, 2), w + 1e-6, w.T.reshape(2, 3))),
    ]
    assert len({head.digest_of(x) for x in [value, *others]}) == len(others) + 1


# ---------------------------------------------------------------------- over a round


def told_in(word: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A word with another table."""
    inner = word[SESSION]
    return {**word, SESSION: {**inner, "head": {**inner["head"], **changes}}}


def all_but_3(change: Callable[[Request], Request]) -> Callable[[Request], Request]:
    return lambda r: change(r) if r.word is not None and r.client != 3 else r


def silenced(r: Request) -> Request:
    return r._replace(message={**r.message, "model": r.message["model"] * 0.0})


def weightless(word: Mapping[str, Any]) -> dict[str, Any]:
    return {part: [group, 0.0, 0.0] for part, (group, *_) in word["weights"].items()}


LIES: Mapping[str, Callable[[Request], Request]] = {
    "rate": lambda r: r._replace(lr=0.0),
    "rate, with a table that says so": lambda r: r._replace(lr=0.0, word=told_in(r.word, lr=0.0)),
    "work": lambda r: r._replace(budget=Budget(epochs=0)),
    "work, with a table that says so": lambda r: r._replace(
        budget=Budget(epochs=0), word=told_in(r.word, budgets=[[*Budget(epochs=0)]])
    ),
    "model": silenced,
    "weight": lambda r: r._replace(word={**r.word, "weights": weightless(r.word)}),
    "clients": lambda r: r._replace(K=1),
}


@pytest.mark.parametrize("what", LIES)
def test_a_round_in_which_all_but_one_are_told_to_do_nothing_opens_nothing(what: str) -> None:
    """Told beside the table, they refuse; told with a table of their own, they and client 3 agree on nothing."""
    fed, host = protected("fedavg", secagg())
    host.tell, host.refusals = all_but_3(LIES[what]), []
    after, _ = play(fed, [ALL], server=(begun := fed.begin(host)), host=host)
    assert same(begun, after)
    assert not host.asked(UNMASK)
    refused = {str(error).split(" is told ")[-1] for _, error in host.refusals}
    other = "something else than the table that all get says of it: refused."
    other = {"clients": expected.RUN, "weight": expected.WEIGHS.split(" is told ")[-1]}.get(what, other)
    assert refused == (set() if "table" in what else {other})
    assert len(host.asked(KEYS)) == 3 * len(ALL)  # attempts, and no more


def test_a_node_refuses_a_table_of_models_of_their_own() -> None:
    """All get one table: client 3 the model, the others a model that nothing is learnt from. What agrees with it is still refused."""
    fed, host = protected("fedavg", secagg())
    sessions = host.party.secrets
    assert isinstance(sessions, Keyring)
    begin = sessions.session
    sessions.session = lambda k: {**begin(k), "insists": [*Insists(alike=True)]}  # type: ignore[method-assign]

    def lie(r: Request) -> Request:
        if r.word is None:
            return r
        other = silenced(r)
        told = [
            head.digest_of(head.told_to(x.message, None, 0, "", x.K, x.n))
            for x in (r if k == 3 else other for k in ALL)
        ]
        own = r if r.client == 3 else other
        return own._replace(word=told_in(r.word, told=messages.table(told, len(ALL), 32)))

    host.tell, host.refusals = lie, []
    begun = fed.begin(host)
    after, _ = play(fed, [ALL], server=begun, host=host)
    assert same(begun, after)
    assert {request.client for request, error in host.refusals if "a model of their own" in str(error)} == {*ALL}


@pytest.mark.parametrize("what", [SHARES, AGREE, UNMASK, "train"])
def test_a_phase_is_answered_in_the_session_that_was_begun_for_it(what: str) -> None:
    fed, host = protected("fedavg", secagg())
    host.refusals = []
    host.tell = lambda r: r._replace(attempt=r.attempt + 1) if r.what == what else r
    begun = fed.begin(host)
    after, _ = play(fed, [ALL], server=begun, host=host)
    assert same(begun, after)
    assert {request.what for request, _ in host.refusals} == {what}


def test_what_failed_is_not_asked_again_in_the_same_session() -> None:
    """A value outside the range ends the session, and three are begun for an ask: three times a bit, not as many as the server likes."""
    fed, host = protected("fedavg", rekeyed(secagg(), range=2.0**-20))
    host.refusals, errors = [], list[str]()
    play(fed, [ALL], host=host)
    host.party.expected = None  # which would say that the round is over
    begin, work = (
        next(r for r in reversed(host.requests) if (r.client, r.what) == (2, what)) for what in (KEYS, "train")
    )
    for request in (work, begin):
        with pytest.raises(ProtocolError) as refused:
            list(host.party.answer([request]))
        errors.append(str(refused.value))
    kinds = {type(error) for request, error in host.refusals}
    assert kinds == {PrivacyError}  # tells of numbers: a node keeps it in its own log
    assert "never began" in errors[0]
    assert "3 masked sessions were begun for 'train' in round 1" in errors[1]


# ---------------------------------------------------------------------- what a party insists on


def begins(record: Mapping[str, Any], insists: Insists) -> Any:
    """What the questions of client 1 of five begin with."""
    how = Protection((secagg(),), 5, 3, 1.0, 5, 1)
    public = Keyring(how, 5, "tests").keys.public  # type: ignore[union-attr]
    return how.protocol.node(1, "tests", bytes(32), public, record, insists)  # type: ignore[misc, union-attr]


def begun(session: Any, attempt: int = 0) -> Any:
    """The session after its first phase."""
    message = messages.told(keys.place_of("tests", "run", 1, attempt, "train", tuple(range(5))))
    return QUESTIONS[KEYS].answer(None, None, message, {}, session)[2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("insists", "said"),
    [
        (Insists(6), "says that 5 clients are asked; client 1 goes on with 6 or more"),
        (Insists(3, 0.7), "a share of 0.7 to stay, not 0.66"),
    ],
)
def test_a_partys_own_least_cohort_and_threshold(insists: Insists, said: str) -> None:
    begun(begins({}, Insists(5, 0.6)))
    with pytest.raises(ProtocolError, match=said):
        begun(begins({}, insists))


def test_a_node_remembers_the_sessions_that_it_began_and_reads_its_policy_each_time(tmp_path: Path) -> None:
    """Three for an ask, whatever the attempt, also where the run was opened anew in between."""
    policy = tmp_path / "policy.toml"
    for attempt in range(3):
        node = NodeKeys(begins, tmp_path, policy)
        node.keep(1, begun(node.session(1), attempt))
    with pytest.raises(ProtocolError, match="3 masked sessions were begun for 'train' in round 1"):
        begun(NodeKeys(begins, tmp_path, policy).session(1), 3)
    node = NodeKeys(begins, tmp_path / "another run", policy)
    policy.write_text("min_cohort = 6\nthreshold = 0.5\n")
    with pytest.raises(ProtocolError, match="client 1 goes on with 6 or more"):
        begun(node.session(1))
    policy.write_text("threshold = 0.9\n")
    with pytest.raises(ProtocolError, match=r"a share of 0\.9 to stay"):
        begun(node.session(1))
