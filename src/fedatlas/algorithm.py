"""The records that make up a federated algorithm. An algorithm states only what differs from FedAvg.

Every function here is pure: state goes in and comes out. They are written for ONE client and see trees of
*trainable* tensors; buffers (batch-norm statistics) travel separately and are handled by the round (C9).

============  ===================================================================================================
message       data sent to a party: a dict of trees, tensors and plain values; ``message["model"]`` is the model
client        private state of a client between its participations, the same kind of dict; ``{}`` if there is none
update        data that a client returns, the same kind of dict
server        state of the server between rounds; ``server["model"]`` is the global model
facts         what a client knows about itself and the federation (`Facts`)
============  ===================================================================================================

Numbers in a message, a state or `Facts` are *inputs* of the compiled local step. Code may compute with them but not branch on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedatlas.grammar import Asks, Form
from fedatlas.tree import Tensors, Tree

Message = Mapping[str, Any]
State = Mapping[str, Any]
Update = Mapping[str, Any]
Models = Mapping[str, Tree]
ServerFacts = Mapping[str, Any]
Finished = tuple[Update, State]
"""The update that a client sends, and the state that it keeps."""
Answered = tuple[Update, State, Any]
"""The reply to a question, the state that the party keeps, and its session for its next answer of the round."""


class Batch(NamedTuple):
    """Rows of one local step. ``extra``: the module's inputs besides parameters, which are buffers and dropout masks."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None  # survey weights, (rows,)
    extra: Mapping[str, Tensor] = {}


class Network(Protocol):
    """The calls that an algorithm may make on a network. All are pure in ``params``."""

    def loss(self, params: Tensors, batch: Batch) -> Tensor: ...
    def logits(self, params: Tensors, batch: Batch) -> Tensor: ...
    def features(self, params: Tensors, batch: Batch, frozen: bool = False) -> Tensor: ...
    def loss_and_features(self, params: Tensors, batch: Batch) -> tuple[Tensor, Tensor]: ...
    def statistics(self, params: Tensors, batch: Batch) -> tuple[Tensors, Mapping[str, int]]: ...


class Data(Protocol):
    """A client's rows as a survey sees them: in evaluation order, in pieces that fit in memory, or as in training."""

    n: int
    classes: int

    def pieces(self) -> Sequence[Batch]: ...
    def batches(self) -> Sequence[Batch]: ...


class Facts(NamedTuple):
    """Facts that a client knows during its local work."""

    n_k: float  # its examples
    n: float  # examples of the whole federation
    K: int  # clients of the whole federation
    classes: int  # 0 if the target is a number
    round: float  # number of the round, from 1
    lr: float  # this round's local learning rate
    survey: Mapping[str, Any] = {}  # results of the task's survey
    weight_decay: float = 0.0  # of this task's local steps
    momentum: float = 0.0  # of the local optimiser: SGD's, or Adam's beta1
    buffers: Mapping[str, Tensor] = {}  # buffers of the local model, known only to `Task.finish`


class Work(NamedTuple):
    """The work that a client actually did in one task."""

    n_k: int
    steps: int
    examples: int  # examples that went through forward and backward
    lr_sum: float  # sum of the learning rates of its steps
    loss: float  # mean training loss over its examples; NaN without steps


class Budget(NamedTuple):
    """The amount of local work in epochs, steps or examples; if several are given, the first limit reached ends it."""

    epochs: int | None = None
    steps: int | None = None
    examples: int | None = None
    first_epoch: int = 0  # the epoch whose shuffle is used first, so that work in pieces continues one stream (C7)


class Patience(NamedTuple):
    """Early stopping, judged after every pass over the rows: local work ends after this long without a lower loss."""

    passes: int = 0  # 0 = no limit of this kind; the first limit that is reached counts
    steps: int = 0
    held_out: float = 0.0  # share of the rows used to judge rather than train, with the best model kept; 0: the pass's
    # mean training loss is judged, and the last model is kept


class Public(NamedTuple):
    """Local work on the public rows instead of the party's own."""

    rows: int = 0  # number of rows, drawn in each round and the same for every party; 0 = all
    targets: str = ""  # key of the message whose entry has a target for each row, used instead of the label


class Solver(NamedTuple):
    """An optimiser that a task brings along; None = the one in ``[local]``."""

    optimizer: Literal["sgd", "adam"] | None = None  # with its usual constants, and without the clipping of ``[local]``
    lr: float | None = None
    batch_size: int | None = None
    pass_steps: int = 1  # least number of steps in a pass over the rows: with few rows the batch shrinks


class Local(NamedTuple):
    """Options of a task that differ from the experiment's ``[local]`` table; None = the value there."""

    epochs: int | None = None
    steps: int | None = None
    lr_scale: float = 1.0
    weight_decay: float | None = None
    balanced: bool = False  # a class-balanced subset of the rows, redrawn each round
    patience: Patience | None = None
    public: Public | None = None
    solver: Solver = Solver()


def start_from_model(message: Message, client: State, facts: Facts) -> Tree:
    """Return the message's model, from which local work starts."""
    return Tree(message["model"])


def plain_loss(model: Network, params: Tensors, batch: Batch, message: Message, client: State, facts: Facts) -> Tensor:
    """Return the model's own loss."""
    return model.loss(params, batch)


def return_model(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
    """Return the local model as the update; the client's state stays unchanged."""
    return {"model": params}, client


def told_model(message: Message, update: Update) -> Models:
    """Return the reference of an update's changes: the message's model, or in a chain the anchor (`Route.anchors`)."""
    sent, told = update.get("model", {}), message.get("anchor", message.get("model", {}))
    return {"model": Tree({name: told[name] for name in sent})} if sent and sent.keys() <= told.keys() else {}


def nothing_beside(message: Message) -> Collection[str]:
    """Return no exceptions: the server may handle all of the model."""
    return ()


class Sealing(NamedTuple):
    """Rules for `Transform` on a task's update, for updates that are more than a change of the message's model."""

    base: Callable[[Message, Update], Models] = told_model  # part -> the reference from which its change is taken
    beside: Callable[[Message], Collection[str]] = nothing_beside  # tensors of the model that no transform touches
    # Parts that are changes of a state which `Task.settle` moves by what the server sees. What a transform leaves out is
    # then part of the next change, so no error memory is kept for them.
    tracked: tuple[str, ...] = ()
    silent: bool = False  # nothing is sent: the work only changes the client's own state
    remembered: bool = True  # what a transform left out is added to the next update; not for a question asked once


class Passes(NamedTuple):
    """The cost of a task in forward passes of one example: forward 1, backward 2."""

    step: float = 3.0  # each example of a local step
    survey: float = 0.0  # each row, once


class Task(NamedTuple):
    """Work that a party can be asked to do; most algorithms have one task, ``train``."""

    start: Callable[[Message, State, Facts], Tree] = start_from_model
    survey: Callable[[Network, Data, Message, State], Mapping[str, Any]] | None = None
    objective: Callable[..., Tensor] = plain_loss
    direction: Callable[[Tree, Tree, Message, State, Facts], Tree] | None = None
    finish: Callable[[Tree, Work, Message, State, Facts], Finished] = return_model
    # Computes the state from what the server sees.
    settle: Callable[[Update, Work, Message, State, Facts], State] | None = None
    options: Local = Local()
    # Parts of individual updates that the server may see; () = it sees only sums, which can be masked.
    shows: tuple[str, ...] = ()
    # Parts that are summed unweighted, for example {"losses": ...} of a mean.
    sums: tuple[str, ...] = ()
    stateful: bool = True  # the client's state is passed in and kept; else the task has no state
    passes: Passes = Passes()
    sealing: Sealing = Sealing()
    reshapes: bool = False  # its tensors change shape between rounds: only a long job gets a step program
    tells_labels: bool = False  # its answer reveals how many rows of each class the party holds


class Question(NamedTuple):
    """A request to a party other than training: label counts, scores, phases of a protocol, histograms of a tree.

    ``answer(model, data, message, state, session) -> (reply, state, session)``. ``model`` is the party's network
    (`Network`) and ``data`` its rows (`Data`); either is None if it has none. ``session`` is what the party's earlier
    answers of the round left in memory (None at first); it is never written or sent. A reply with a "model" is sent with
    the buffers of the message.
    """

    answer: Callable[[Network, Any, Message, State, Any], Answered]
    data: Literal["own", "public", "none"] = "own"
    rows: int = 0  # number of public rows, drawn in each round and the same for every party; 0 = all
    balanced: bool = False  # a class-balanced subset of the rows, redrawn each round
    stateful: bool = False  # the client's state is passed in and kept; else the question has no state
    shows: tuple[str, ...] = ()  # as for a task
    passes: float = 0.0  # its cost in forward passes of each row
    tells_labels: bool = False  # as a task's


class Unit(NamedTuple):
    """A superclient: clients that are drawn together. Units are numbered in the order of their smallest client."""

    number: int
    members: tuple[int, ...]  # members that take part this round, ascending; may be empty


class Round(NamedTuple):
    """One round as the server sees it."""

    number: int  # from 1
    cohort: tuple[int, ...]  # selected clients that will take part, ascending
    K: int  # number of all clients
    n: int  # number of all examples
    sizes: Mapping[int, int]  # examples of each client of the cohort
    examples: int = 0  # examples the cohort goes through in this round's local work
    budgets: Mapping[int, Budget] = {}  # clients whose amount of work differs (stragglers)
    facts: Mapping[int, Mapping[str, float]] = {}  # further plain numbers that the server learnt about a client
    seed: int = 0  # seed of the run, for the round's own draws
    units: tuple[Unit, ...] = ()  # in the order drawn, if clients are grouped; the cohort holds their members
    groups: int = 0  # number of all units

    @property
    def m(self) -> int:
        """Number of clients taking part."""
        return len(self.cohort)


Coefficients = Mapping[int, float]
"""client -> coefficient of its update in the reduction."""

Weights = Coefficients | Mapping[str, Coefficients]
"""One set of coefficients, or one per part of the update if parts differ."""

Mixing = Mapping[int, Mapping[int, float | Mapping[str, float]]]
"""receiver -> sender -> coefficient of the sender's update in the receiver's sum of all it hears (or one per part)."""


class Route(NamedTuple):
    """The route of messages and replies, if it is not one trip from the server to all clients and back."""

    sender: Mapping[int, int] = {}  # party -> the client that passes it its message; others hear from the server
    via: Literal["server", "peer"] = (
        "server"  # where the replies go; replies to a peer are counted when they are passed on
    )
    visits: Mapping[int, int] = {}  # how often a party has done this in the round; its epochs continue from there
    seats: Mapping[int, int] = {}  # party -> its place in the sum; a party that is not named has its own number
    anchors: Mapping[int, Tree] = {}  # party -> the model that the server knows, if the message holds another; it is
    # sent along if updates are compressed, so that both ends take the change from the same model


class Ask(NamedTuple):
    """A request that a round yields: which parties do what with which messages, and how replies are combined.

    A message that a party already has (it is its own sender) costs nothing. With ``reduce="mean"`` the reply is the sum
    of the updates times ``weights(those who answered)``, with ``"sum"`` their plain sum. In both cases the round never
    sees one client's update, so updates can be masked or encrypted. ``"each"`` returns every update.
    With ``"neighbours"`` no server takes part: an update goes to every other node that hears it according to
    ``mixing(those who answered)``, and a node's reply is the sum of the updates times its coefficients.
    """

    to: tuple[int, ...]
    what: str
    messages: Mapping[int, Message]
    reduce: Any = "mean"  # a reducer or its name (`fedatlas.aggregation`)
    weights: Callable[[tuple[int, ...]], Weights] | None = None
    budgets: Mapping[int, Budget] = {}
    mixing: Callable[[tuple[int, ...]], Mixing] | None = None  # with "neighbours"
    architectures: Mapping[int, str] = {}  # party -> the architecture it works with, if the server chooses it
    route: Route = Route()
    words: Mapping[int, Mapping[str, Any]] = {}  # party -> further information with which it seals a protected update


class Replies(NamedTuple):
    """The replies that a round receives for an `Ask`."""

    clients: tuple[int, ...]  # parties that answered
    value: Update | None  # the mean or the sum, in float64; None for other reductions, or if nobody answered
    each: Mapping[int, Update]  # "each": the updates; "neighbours": each node's sum, tensors in float64; else empty
    combine: Callable[..., Update | None] | None = None  # with "each", the run's rule; `reducers.averaged` calls it


RoundGenerator = Generator[Ask, Replies, State]
RoundMaker = Callable[["Algorithm", State, Round], RoundGenerator]


UNION = -1
"""The party that holds the rows of all clients. Only the centralised baseline may ask it."""

SERVER = -2
"""The server itself, which holds the public rows. Asking it costs no bytes."""

Groups = tuple[tuple[int, ...], ...]
"""Clients that are drawn together: each group ascending, groups in the order of their smallest client."""


def keep_model(models: Models, facts: ServerFacts) -> State:
    """Return the server's state, which is only the model."""
    return {"model": models["global"]}


def send_model(server: State, client_id: int) -> Message:
    """Return the message for a party, which is only the model."""
    return {"model": server["model"]}


def take_mean(server: State, mean: Update, round: Round) -> State:
    """Return the server's state with the mean of the local models as the global model."""
    return {**server, "model": mean["model"]}


def global_model(server: State) -> Models:
    """Return the model that is evaluated and saved."""
    return {"global": server["model"]}


def by_samples(round: Round) -> Coefficients:
    """Return the weights p_k = n_k / sum of n_j over the clients that returned (C3)."""
    total = sum(round.sizes[k] for k in round.cohort)
    return {k: round.sizes[k] / total for k in round.cohort}


Weighed = Literal["averaging", "client weighting", "adaptive server update", "regularisation", "matching"]
Apart = Literal["clustering: multitask", "clustering: sequential", "personalisation", "distillation", "decentralised"]
Family = Literal["", "baseline"] | Weighed | Apart
"""The part of federated learning that a method changes (its place in the taxonomy); the registry refuses "", not declared."""

Communication = Literal["centralised", "decentralised, mutual trust", "decentralised, single-sided trust"]


class Card(NamedTuple):
    """Description of an algorithm for readers, for the record and for counting bytes. It does not affect any model."""

    family: Family = ""
    communication: Communication = "centralised"
    keeps: str = "nothing"  # what a client, or a node, keeps between its participations
    leaves: str = "the local model"  # data that leave a client
    sends: Literal["messages", "rows", "nothing"] = "messages"  # its asks' messages; all rows, once; or nothing
    figures: Callable[[State], Mapping[str, float]] | None = None  # facts of the server's state for a row of the record
    describe: Callable[[int, int], Mapping[str, Any]] | None = None  # (K, seed) -> facts for the record, or ConfigError
    unused: Mapping[str, str] = {}  # keys that have no effect given the others, and why: {"algorithm.psi": "..."}
    # Sentences for the user, once, before round 1: from the server's state after `prepare`, and the facts of `server_init`
    # with the "sizes" of all clients.
    notices: Callable[[State, ServerFacts], Sequence[str]] | None = None
    excluded_laws: Mapping[str, str] = {}  # conformance law -> why the mathematics rules it out


class Demands(NamedTuple):
    """Requirements of an algorithm on the data and the networks, beyond a loss of rows."""

    classes: bool = False  # needs class labels
    features: bool = False  # the network must be head(features(x))
    layered: bool = False  # the network must be a chain of layers of units (`fedatlas.layers`): facts["chain"]
    mixed: bool = False  # works with clients whose models differ in architecture (``[[models]]``)
    inits: int = 1  # different initial models: ``models`` of server_init has "global", "1", "2", ...
    public: Mapping[str, Any] | None = None  # needs public rows: the default of the ``[public]`` table
    public_labels: bool = True  # uses their labels; else rows of any classes are fine


Check = Callable[[Mapping[str, Any], Sequence[int] | None], str]
"""Function of the experiment's keys with their values, as in {"local.lr": 0.1}, and each client's number of rows (None
before data are read). It returns one sentence about values that cannot work, with what to do; "" if there are none."""


class Algorithm(NamedTuple):
    """A federated algorithm. The default of every field is FedAvg's; an algorithm states only what differs."""

    name: str = "fedavg"
    tasks: Mapping[str, Task | Question] = {"train": Task()}
    # Takes the initial models and `federation.in_process.server_facts`, with the run's rounds.
    server_init: Callable[[Models, ServerFacts], State] = keep_model
    client_init: Callable[[Tree, Facts], State] | None = None
    broadcast: Callable[[State, int], Message] = send_model
    weigh: Callable[[Round], Weights] = by_samples
    server_update: Callable[[State, Update, Round], State] = take_mean
    models: Callable[[State], Models] = global_model
    fixes: Mapping[str, Any] = {}  # experiment keys the algorithm dictates, e.g. {"local.epochs": 1}
    check: Check | None = None  # asked before data are read, and again when the clients' sizes are known
    # Why it cannot be used with a table or a value of a key, {"compression": "..."}, {"model.bn.local": "..."}, or inside
    # the chains of FedSeq, {"chain": "..."}. "root": rules that train the server's rows. "masks": mechanisms that hide
    # updates from the server; "dp": noise at the level of clients (`fedatlas.setup.mechanism_choice`); "deployment": runs
    # between real parties (`fedatlas.deployment.refusals`). Only reasons that the other fields do not imply.
    refuses: Mapping[str, str] = {}
    card: Card = Card()
    # The fields below serve rounds that are not "send the model, train, average".
    rounds: RoundMaker | None = None  # None: rounds.federated
    prepare: RoundMaker | None = None  # runs before round 1, with all clients
    serverless: bool = False  # nodes hear each other, by reduce="neighbours"; no server takes part
    demands: Demands = Demands()
    personal: Callable[[Message, State], Tree] | None = None  # may also hold buffers, if they are the client's own
    clusters: Callable[[State], Mapping[int, int]] | None = None  # client -> its cluster
    groups: Callable[[State], Groups] | None = None  # clients that are drawn together, known after `prepare`
    # In a chain, if clients send more than their model: (other parts received, the own update) -> the parts passed on.
    hand_on: Callable[[Update, Update], Update] | None = None
    asks: Asks | None = None  # asks of its set-up and its rounds; None: `grammar` derives them
    ruled: bool = False  # whether its server averages what single clients send by `averaged`, so by the run's rule

    @property
    def grammar(self) -> Asks | None:
        """The asks of the algorithm; by default one training per round for a mean. None for custom rounds that declare nothing."""
        plain = self.rounds is None and self.prepare is None and "train" in self.tasks
        return Asks((Form("train", broadcast=True),)) if self.asks is None and plain else self.asks

    def tells_labels(self, what: str) -> bool:
        """Return whether the answer to a task reveals how many rows of each class a party holds."""
        return what in self.tasks and self.tasks[what].tells_labels

    def training(self, what: str = "train") -> Task:
        """Return the task ``what``, which must be a `Task`, not a `Question`."""
        task = self.tasks[what]
        assert isinstance(task, Task), f"'{what}' of '{self.name}' is a question"
        return task


class Transform(NamedTuple):
    """A transformation of updates between client and server. It acts on float trees, as changes from what was sent.

    Written for one client and pure. It treats every part of the update (a tree) as one vector; other values and buffers pass unchanged.
    """

    name: str
    encode: Callable[[Update, State, torch.Generator], Finished]  # on the client: (sealed, memory)
    decode: Callable[[Update], Update] | None = None  # on the server, one update at a time; None: reduced as it arrives
    memory_init: Callable[[Update], State] | None = None  # memory kept at the client, by part; some parts have none
    finalize: Callable[[Update, Round, torch.Generator], Update] | None = None  # on the server, after the reduction
