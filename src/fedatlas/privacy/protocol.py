"""A protocol around an ask, after which the server knows a sum of updates but no single update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fedatlas.algorithm import Ask, Message, Question, Update
    from fedatlas.privacy.ask_protocol import Asking, Place
    from fedatlas.tree import Tree

CLOSED = "closed"  # in what stands in a model's place: its ciphertexts, which only clients open


class Doing(NamedTuple):
    """The client, round and visit of an update."""

    client: int
    round: int
    what: str
    visit: int
    rows: int
    word: Mapping[str, Any] = {}  # what the server told the client besides its message
    seed: int = 0  # of the run, for a `seal` that draws noise
    hostile: bool = False  # the client skips clip and noise


class Keys(NamedTuple):
    """The secrets of all parties of a simulation, and the part that the server half is told."""

    public: Any
    session: Callable[
        [int, Mapping[str, Any]], Any
    ]  # (client, sums it opened so far) -> the session in which its questions begin


class Closed(NamedTuple):
    """The parties' part in a run whose server keeps the model as a ciphertext."""

    # (ciphertext, the initial model, sums that can be in it, session) -> the model. ProtocolError for what is no sum of this run.
    opened: Callable[[Mapping[str, Any], Tree, int, Any], Tree]
    secret: Callable[[Keys], Mapping[str, Any]]  # what the parties keep for a run that goes on
    again: Callable[[Mapping[str, Any]], Keys]  # the inverse


class Insists(NamedTuple):
    """A party's requirements for a masked sum, regardless of the experiment."""

    min_cohort: int = 1  # clients of the sum
    threshold: float = 0.0  # share of those asked that has to stay until the end
    alike: bool = False  # all must be told the same to work on, instead of one model each
    counting: Sequence[int] | None = None  # the clients that count for ``min_cohort``; None: all
    most: float = 1.0  # largest share of a sum that the party's weight may have, as far as weights are told


class Weighed(NamedTuple):
    """The weighting of a sum that the experiment requires, regardless of the server."""

    mean: bool  # whether the sum becomes a mean
    sums: tuple[str, ...]  # parts of a mean that are summed unweighted
    way: Callable[[str], str]  # part -> "rows", "equal", or "" if a client cannot tell (`reasons.weighs`)


class Protocol(NamedTuple):
    """A protocol around an ask, after which the server knows a sum of updates but no single update."""

    questions: Mapping[str, Question]  # its phases other than the work
    phases: Mapping[str, str]  # question -> one of `PHASES`
    keys: Callable[[int, str, bool], Keys]  # (clients, federation, short keys for tests)
    # (changes, .., the server's word, session) -> (what is sent, the session, the changes as the server will decode them).
    seal: Callable[[Update, Doing, Mapping[str, Any], Any], tuple[Update, Any, Update]]
    around: Callable[[Any, str, Ask, Place, int], Asking]  # (`Keys.public`, federation, .., .., processes)
    fits: Callable[[int, bool], Any]  # (clients, weights by rows): PrivacyError if a sum would overflow
    fewest: int  # smallest number of clients in a sum
    reducer: str  # name of the reducer of sealed updates
    most: int | None = None
    beyond: str = ""  # what to write for more
    leaves: tuple[str, ...] = ("masked",)  # phases in which a client may leave; "masked": the work
    staged: bool = False  # a phase after the work needs each client's session of the work
    later: bool = False  # a phase after the work sends something as long as the update
    second_server: tuple[str, ...] = ()  # questions of a second server: the first one sees neither them nor the answers
    everybody: bool = False  # every round needs all clients, to its end
    # (one client's sealed update, another's word, its session) -> as if the other sealed it. One party then answers for all in a dry run.
    copied: Callable[[Update, Mapping[str, Any], Any], tuple[Update, Any]] | None = None
    # (a `federation.link.Request`, the party's session, digests of what was compared before): ProtocolError
    check: Callable[[Any, Any, dict[int, Any]], None] | None = None
    # (the server's word, ..): whether it weighs a sum as required.
    weighed: Callable[[Mapping[str, Any], Weighed], bool] = lambda word, due: True
    # (what, message, session) -> the clients of a sum that a party signs for; None for any other question.
    cohort: Callable[[str, Message, Any], tuple[int, ...] | None] | None = None
    # (client, federation, its private key, all public keys, sums it opened, ..) -> the first session of a deployed node.
    node: Callable[[int, str, bytes, Mapping[int, bytes], Mapping[str, Any], Insists], Any] | None = None
    counted: Callable[[Update], int] = lambda sent: 0  # of one client's sealed update, for `Mechanism.preview`
    closed: Closed | None = None  # if the server keeps the model as a ciphertext: the value of its sums is the next one
    before: Protocol | None = None  # in its place before round 1, for sums that all may know
