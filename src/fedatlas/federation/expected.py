"""The requests that a party expects, worked out from what it knows of the experiment. Each request is compared before anything is done.

Some values only the server knows, such as the model after round 1, control variates or an adaptive mu. Of these only form and
finiteness are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from torch import Tensor

from fedatlas.aggregation.changes import finite
from fedatlas.algorithm import Budget, State, Task, start_from_model
from fedatlas.engine.job import Bench
from fedatlas.errors import DivergedError, ProtocolError
from fedatlas.federation.asks import Tally, from_whom, of_party
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.closed_models import is_closed
from fedatlas.federation.first_message import FirstMessages
from fedatlas.federation.link import Request
from fedatlas.grammar import Form
from fedatlas.privacy.ask_protocol import ATTEMPTS, CHAIN
from fedatlas.privacy.protocol import Weighed
from fedatlas.privacy.reasons import weighs
from fedatlas.tree import Tree

OF_THE_NETWORK = (
    "model",
    "buffers",
    "start",
    "judged",
)  # entries of a message that belong to the network, in any mapping
ANCHOR = "anchor"  # the base of a change in a chain; elsewhere it would make the same answer look different
HANDED = "handed"  # extra state that a client of a chain hands on with its model, in the algorithm's form
CLOSE = 1e-6  # relative: a cosine may differ in its last bit on another machine

RUN = "a party is asked for another run than its experiment's, or told of another number of clients or examples."
ROUND = (
    "a party is asked for a round that does not come after the last that landed, or that the experiment does not have."
)
ATTEMPT = f"a party is asked for an attempt at a round that is over, or for more than {ATTEMPTS} of them."
NUMBER = "a party is asked by a number that no ask of a round has."
FORM = "a party is asked in a way that '{}' does not declare: for another task, another sum, alone, or by another way."
OFTEN = "a party is asked more often in a round than '{}' declares."
CLEAR = "a party is asked for an update without the protection of [[privacy]]."
FOREIGN = "a party is asked by a protocol of [[privacy]] for what is not protected by it, or of other or more parties than a round has."
RATE = "a party is told another learning rate than the experiment's of this round."
BUDGET = "a party is told another amount of work than the experiment allows."
WEIGHS = "a party is told a word that weighs this sum otherwise than the experiment does, or asks for a sum in place of a mean."
CONTENT = "a party is sent tensors that are not of its network's form."
FIRST = (
    "a party is sent, in round 1 or to judge before it, another model or other values than the experiment begins with."
)
FINITE = "a party is sent numbers that are not finite"


class NotFinite(ProtocolError, DivergedError):
    """A message with NaN or infinity: a breach of the rules between real parties, a diverged run in a simulation."""


class Rules(NamedTuple):
    """The rules that an experiment sets for its rounds."""

    rounds: int
    rate: Callable[[int], float]  # number of a round -> its local learning rate; 0: the rate of the set-up
    budget: Budget  # the work of a round
    stragglers: int = 0  # most epochs of a client that is told to work less; 0: no client is
    cohort: int | None = None  # most clients of a round
    begin: Callable[[], State] | None = None  # makes the server's state before round 1; None if no party can know it


class Expected:
    """The requests that the parties of one experiment expect.

    ``n`` is None if a party does not know it. ``rules`` is None for rounds without a plan.
    """

    def __init__(self, bench: Bench, run: str, K: int, n: int | None = None, rules: Rules | None = None) -> None:
        self.bench, self.run, self.K, self.n, self.rules = bench, run, K, n, rules
        how = bench.protection
        self.reducers = frozenset[str]() if how is None else how.reducers(bench.transform)
        self.closed = how is not None and how.closed is not None
        self.forms: dict[str, Mapping[str, Any]] = {}  # by architecture: tensor -> its shape and type
        self.first = FirstMessages(bench.algorithm, None if rules is None else rules.begin)
        self.seen: WeakValueDictionary[int, Tree] = WeakValueDictionary()  # trees of this round that were looked at
        self.begin()

    def begin(self) -> None:
        """Begin a round or another attempt at it, with nothing asked yet."""
        self.tally = Tally(self.K, max(len(self.bench.chain) - 1, 0))
        self.worked: Counter[int] = (
            Counter()
        )  # by party: tasks of work; a question leaves nothing for a further visit to continue

    def check(self, request: Request, state: PartyState) -> None:
        """Raise ProtocolError, with a fixed sentence, for a request that no honest server of this experiment sends. Change nothing."""
        for holds, sentence in self._head(request, state):
            if not holds:
                raise ProtocolError(sentence)
        if self._protocol(request):
            self._check_protocol(request)
        elif request.client >= 0:
            self._check_form(request, state)
            self._check_content(request)

    def count(self, request: Request, state: PartyState) -> None:
        """Count a request; ProtocolError if it comes more often in its round than declared."""
        before = self.worked[request.client]
        if not self.counted(request, state) or not 0 <= request.visits <= before:
            raise ProtocolError(OFTEN.format(self.bench.algorithm.name))

    def counted(self, request: Request, state: PartyState) -> bool:
        """Count a request and return whether it may come that often. A party's new process also counts requests answered by the old one."""
        question = self._protocol(request) and self.bench.algorithm.grammar is not None
        one = Form(request.what, "each", most=self._sums(request.round)) if question else self._form(request)
        if one is not None and not within(one, request.round):
            state.ended = request.round
        if one is not None and isinstance(self.bench.tasks(request.client).get(request.what), Task):
            self.worked[request.client] += 1
        return one is None or self.tally.once_more(request.client, one)

    # ------------------------------------------------------------------------------------------------ the head

    def _head(self, request: Request, state: PartyState) -> Iterator[tuple[bool, str]]:
        rules, number, attempt = self.rules, request.round, request.attempt
        yield request.run == self.run and request.K == self.K and self.n in {None, request.n}, RUN
        yield number >= 0 and (state.landed is None or number == state.landed + 1), ROUND
        begun = state.place[1] if number == state.place[0] else 0
        yield begun <= attempt < ATTEMPTS, ATTEMPT
        yield 0 <= request.number < self._asks(number), NUMBER
        if rules is not None:
            yield number <= rules.rounds, ROUND
            yield math.isclose(request.lr, rules.rate(number), rel_tol=CLOSE, abs_tol=1e-12), RATE

    def _asks(self, number: int) -> float:
        """Return an upper bound on the asks of a round: each form as often as allowed for each party, plus the questions of a protocol."""
        forms, how = self._declared(number), self.bench.protection
        if not forms:
            return math.inf
        often = sum(map(self.tally.most, forms))
        return (self.K + 2) * often * (1 + (0 if how is None else len(how.phases)))

    # ------------------------------------------------------------------------------------------------ protocols

    def _protocol(self, request: Request) -> bool:
        """Whether a request is a question of a protocol of ``[[privacy]]``."""
        how = self.bench.protection
        return how is not None and request.what in how.phases

    def _hidden(self, form: Form) -> bool:
        """Whether ``[[privacy]]`` protects the answers to a form, as in `asks.hidden`."""
        task = self.bench.algorithm.tasks.get(form.what)
        if self.bench.protection is None or (isinstance(task, Task) and task.sealing.silent):
            return False
        return form.via == "server" and form.to == "clients" and form.reduce in {"mean", "sum"}

    def _protected(self, number: int) -> list[Form]:
        """Return the protected forms of a round."""
        return [form for form in self._declared(number) if self._hidden(form)]

    def _sums(self, number: int) -> int:
        """Return the largest number of protected sums in a round."""
        return sum(form.most if isinstance(form.most, int) else self.K for form in self._protected(number))

    def _check_protocol(self, request: Request) -> None:
        how, rules, message = self.bench.protection, self.rules, request.message
        assert how is not None
        assert how.protocol is not None
        forms = self._protected(request.round)
        protected = {form.what for form in forms}
        plain = request.single and request.reduce == "each" and not request.peer and request.word is None
        plain = plain and request.sender is None and not request.visits and not request.architecture
        plain = plain and request.budget is None and request.anchor is None
        ask = message.get("ask", next(iter(protected), ""))
        belongs = isinstance(ask, str) and ask in protected
        belongs = belongs or self.bench.algorithm.grammar is None
        parties = how.protocol.cohort(request.what, message, None) if how.protocol.cohort is not None else None
        known = parties is None or all(k in range(self.K) for k in parties)
        few = rules is None or rules.cohort is None or parties is None or len(parties) <= rules.cohort
        few = few or any(form.whole and message.get("ask", form.what) == form.what for form in forms)
        if not (plain and belongs and known and few):
            raise ProtocolError(FOREIGN)

    # ------------------------------------------------------------------------------------------------ forms

    def _declared(self, number: int) -> tuple[Form, ...]:
        grammar = self.bench.algorithm.grammar
        return () if grammar is None else grammar.of(number)

    def _form(self, request: Request) -> Form | None:
        """Return the form of a request; None if no declared form matches."""
        k = request.client
        for form in self._declared(request.round):
            alike = form.what == request.what and of_party(form, k) and (form.via == "peer") == request.peer
            if alike and from_whom(form, k, request.sender) and self._reduced(form, request):
                return form
        return None

    def _reduced(self, form: Form, request: Request) -> bool:
        """Whether the update goes to the declared reducer, or to a reducer of the mechanism if it is protected."""
        if request.word is None or not self._hidden(form):
            return request.reduce == form.reduce and request.single == form.single
        return not request.single and request.reduce in {form.reduce, "sum", *self.reducers}

    def _check_form(self, request: Request, state: PartyState) -> None:
        algorithm = self.bench.algorithm
        if algorithm.grammar is None:  # custom rounds that declare nothing: no form to compare with
            return
        one = self._form(request)
        ends = state.ended in {None, request.round}
        anchored = algorithm.groups is None and (request.anchor is not None or ANCHOR in request.message)
        if one is None or request.architecture or anchored or not (ends or within(one, request.round)):
            raise ProtocolError(FORM.format(algorithm.name))
        if self._hidden(one) != (request.word is not None):
            raise ProtocolError(CLEAR if self._hidden(one) else FORM.format(algorithm.name))
        chain = None if request.word is None else request.word.get(CHAIN)
        if request.word is not None and not (chain is False or (chain is True and algorithm.groups is not None)):
            raise ProtocolError(FORM.format(algorithm.name))
        if request.word is not None and not self._weighed(one, request.word):
            raise ProtocolError(WEIGHS)
        if not self._allowed(one, request.budget):
            raise ProtocolError(BUDGET)

    def _weighed(self, form: Form, word: Mapping[str, Any]) -> bool:
        """Whether a sum uses the algorithm's weights."""
        how, algorithm, task = self.bench.protection, self.bench.algorithm, self.bench.algorithm.tasks.get(form.what)
        if how is None or how.protocol is None:
            return True
        sums = tuple(task.sums) if isinstance(task, Task) else ()
        return how.protocol.weighed(word, Weighed(form.reduce == "mean", sums, partial(weighs, algorithm)))

    def _allowed(self, form: Form, told: Budget | None) -> bool:
        rules = self.rules
        if told is None or rules is None:
            return True
        own = rules.budget if form.epochs is None else Budget(epochs=form.epochs)
        fewer = type(told.epochs) is int and told == Budget(epochs=told.epochs)
        return told == own or (fewer and told.epochs in range(1, rules.stragglers + 1))

    # ------------------------------------------------------------------------------------------------ content

    def _check_content(self, request: Request) -> None:
        task, like = self.bench.tasks(request.client)[request.what], self._network(request.client)
        if (
            isinstance(task, Task)
            and task.start is start_from_model
            and not (isinstance(model := request.message.get("model"), Mapping) and model)
        ):
            raise ProtocolError(CONTENT)
        closed = self.closed and is_closed(request.message.get("model"))  # whoever opens it looks at it
        self._look("", {k: x for k, x in request.message.items() if not (closed and k == "model")}, like, request)
        if request.anchor is not None:
            self._look("model", request.anchor, like, request)
        if not self.first.allow(request, self._form(request)):
            raise ProtocolError(FIRST)

    def _network(self, client: int) -> Mapping[str, Any]:
        """Return the form of a party's network."""
        name = self.bench.architecture(client)
        if name not in self.forms:
            params, buffers = self.bench.network_of(client).initial()
            self.forms[name] = {"model": shapes(params), "buffers": shapes(buffers)}
        return self.forms[name]

    def _look(self, name: str, value: Any, like: Mapping[str, Any] | None, request: Request) -> None:
        if isinstance(value, Tree):
            if id(value) in self.seen:
                return
            self.seen[id(value)] = value
        if isinstance(value, Mapping):
            if (isinstance(value, Tree) or name in OF_THE_NETWORK) and not self._formed(name, value, like):
                raise ProtocolError(CONTENT)
            for key, inner in value.items():
                self._look(str(key), inner, None if key == HANDED else like, request)
        elif isinstance(value, list | tuple):
            for inner in value:
                self._look(name, inner, like, request)
        # In a set-up an algorithm may let a start diverge and choose another.
        elif request.round and not is_finite(value):
            raise NotFinite(FINITE)

    def _formed(self, name: str, value: Mapping[str, Any], like: Mapping[str, Any] | None) -> bool:
        """Whether tensors have the form of the network, of its statistics or of both. Empty tensors need only known names."""
        if like is None or self.bench.chain:  # a rule's own parts; models that may grow
            return True
        if not all(isinstance(x, Tensor) for x in value.values()):
            return False
        model, buffers = like["model"], like["buffers"]
        whole = {**model, **buffers}
        if all(x.numel() == 0 for x in value.values()):
            return value.keys() <= whole.keys()
        kinds = {"buffers": [buffers], "model": [model]}.get(name, [model, buffers, whole])
        return any(value.keys() == kind.keys() and shapes(value) == kind for kind in kinds)


def within(form: Form, number: int) -> bool:
    """Whether a form is declared for a round. It may also come in one other round, in case the run ends there."""
    return form.when is None or form.when(number)


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the shape and the type of each tensor."""
    return {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()}


def is_finite(x: Any) -> bool:
    """Whether a leaf of a message is free of NaN and infinity."""
    if isinstance(x, Tensor):
        return not x.is_floating_point() or finite(x)
    return not isinstance(x, float) or math.isfinite(x)
