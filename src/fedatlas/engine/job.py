"""One client's piece of work: the job given to an executor, and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Budget,
    Facts,
    Local,
    Message,
    Public,
    Question,
    State,
    Task,
    Transform,
    Update,
    Work,
)
from fedatlas.data.batches import Draw, Masks, Rows, Values, balanced_rows, batches, parted_rows, public_rows
from fedatlas.engine.attackers import Attacker, Order, waits_for_others
from fedatlas.engine.client_data import ClientData
from fedatlas.engine.device import CPU, placing, without_cudnn
from fedatlas.engine.fake_rows import reported
from fedatlas.engine.model import Network, copied
from fedatlas.engine.optim import Optimizer
from fedatlas.engine.private_steps import sampling_of
from fedatlas.engine.step import moved
from fedatlas.errors import DivergedError, PrivacyError
from fedatlas.layers import Layer
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.protection import Protected, left_out, protect, unaided
from fedatlas.privacy.protocol import Doing
from fedatlas.rng import torch_stream
from fedatlas.transforms.change import seal, unseal
from fedatlas.tree import Tensors, Tree
from fedatlas.wire import codec


class LocalOptions(NamedTuple):
    """The ``[local]`` table as the engine needs it; the learning rate is the round's and comes with the job."""

    optimizer: Optimizer = Optimizer()
    batch_size: int = 32
    budget: Budget = Budget(epochs=1)
    weight_decay: float = 0.0
    clip: float = 0.0
    augment: str = "none"
    merge: bool = False  # a short last batch joins the one before it


class Job(NamedTuple):
    """A task of one client in one round: do task ``what`` as client ``client``."""

    client: int
    what: str
    message: Message
    state: State
    facts: Facts
    budget: Budget
    seed: int
    memory: State | None = None  # of the transform that seals the update, {} before its first use; None: not sealed
    architecture: str = ""  # of the network it works with, if there are several
    role: str = ""  # of the party, if it has a special one
    session: Any = None  # kept in the party's memory by earlier questions of this round
    word: Mapping[str, Any] | None = None  # values that seal the update, if it is protected
    order: Order | None = None  # orders of a malicious client
    shown: bool = False  # its result brings where its steps began and ended, for omniscient attackers

    @property
    def kind(self) -> str:
        """Return the kind of the job; jobs of one kind share their step programs."""
        role = f"as {self.role}" if self.role else ""  # an architecture may have the same name
        return " ".join(name for name in (self.what, self.architecture, role) if name)


class Result(NamedTuple):
    """The result of a job: the update as sent, the client's new state, the transform's new memory."""

    client: int
    update: Update
    state: State
    work: Work
    memory: State | None = None
    seconds: float = 0.0  # seconds that the work took, sealing included
    sealing: float = 0.0  # seconds of it spent on noise, masks or encryption
    bare: int = 0  # bytes of the update before sealing
    session: Any = None  # for later questions in this round
    lost: bool = False  # training gave NaN or infinity; nothing is sent (`Bench.spares`)
    failed: str = ""  # why its change is zero, if noise covers that (`engine.failing`)
    # "start", "end" and "buffers" of the local model, if the job is ``shown``, or waits for other attackers
    ended: Mapping[str, Any] | None = None


class Executor(Protocol):
    """Runner of jobs, with results in the jobs' order. Use each result before taking the next: its memory is reused."""

    @property
    def run_job(self) -> Callable[[Bench, Job], Result]: ...  # does one job
    def run(self, jobs: Iterable[Job]) -> Iterator[Result]: ...
    def close(self) -> None: ...


Tasks = Mapping[str, Task | Question]


class Role(NamedTuple):
    """A party with a special part, such as malicious, holder of the labels or helper, and its differences from other parties."""

    tasks: Callable[[Tasks], Tasks] = dict  # the algorithm's tasks -> this role's
    rows: Callable[[RowSource], RowSource] = lambda rows: rows
    client_init: Callable[[Tree, Facts], State] | None = None  # its state at first use; None: the algorithm's


class Built(NamedTuple):
    """A network at its start, and facts about it."""

    network: Network
    params: Tree
    buffers: Tree
    masks: Masks | None = None  # of its dropout layers
    flops: int = 0  # of a forward pass of one row

    @classmethod
    def of(cls, network: Network, masks: Masks | None = None, flops: int = 0) -> Built:
        """Return the network as it is."""
        return cls(network, *network.initial(), masks, flops)


class Bench(NamedTuple):
    """All values that stay the same during a run and that every executor needs."""

    algorithm: Algorithm
    networks: Mapping[str, Built]  # by architecture; usually one shared by all, called ""
    rows: RowSource
    local: LocalOptions
    classes: int
    fill: tuple[float, ...] = ()
    raw_bytes: int = 0  # of all rows, if the algorithm sends them
    transform: Transform | None = None  # applied to a client's update before it is sent
    protection: Protection | None = None  # of updates that leave a client
    chain: tuple[Layer, ...] = ()  # the network's layers of units, if the algorithm needs them
    owners: tuple[str, ...] = ()  # architecture by client; () = one for all
    public: int = 0  # number of public rows
    drift: Callable[[int], RowSource] | None = None  # a round's source of rows, if it is not ``rows`` in every round
    roles: Mapping[str, Role] = {}  # by name
    cast: Mapping[int, str] = {}  # party -> the name of its role, if it has one
    role: str = ""  # the role that this bench was made for
    attackers: Mapping[str, Attacker] = {}  # by the name of the attack
    attack: str = ""  # the attack that this bench was made for
    spares: bool = False  # a client whose training gives NaN or infinity is left out; otherwise it ends the run
    device: torch.device = CPU  # where jobs run and the networks are

    def on(self, device: torch.device) -> Bench:
        """Return the same bench with its networks on a device, for an executor that works there."""
        if device == self.device:
            return self
        kinds = {name: one._replace(network=one.network.on(device)) for name, one in self.networks.items()}
        return self._replace(networks=kinds, device=device)

    def built(self, architecture: str = "") -> Built:
        """Return the network of an architecture, with its facts; "" is the shared one, or the first of several."""
        return self.networks[architecture] if architecture else next(iter(self.networks.values()))

    @property
    def network(self) -> Network:
        """The only network, or the first; a job's own in the bench from `of`."""
        return self.built().network

    def architecture(self, party: int) -> str:
        """Return the name of a party's architecture; "" if there is one for all."""
        return self.owners[party] if self.owners and party >= 0 else ""

    def network_of(self, party: int) -> Network:
        """Return the network of a party."""
        return self.built(self.architecture(party)).network

    def role_of(self, party: int) -> Role | None:
        """Return a party's special role, or None."""
        return self.roles[self.cast[party]] if party in self.cast else None

    def tasks(self, party: int) -> Tasks:
        """Return the tasks that a party can be asked to do."""
        role = self.role_of(party)
        return self.algorithm.tasks if role is None else role.tasks(self.algorithm.tasks)

    def attacker(self, job: Job) -> Attacker | None:
        """Return the attack that a job carries out, or None."""
        return None if job.order is None else self.attackers[job.order.attack]

    def of(self, job: Job) -> Bench:
        """Return the bench for a job: with the network of its architecture and the optimiser of its task."""
        bench = self
        if self.drift is not None:
            bench = self._replace(rows=self.drift(int(job.facts.round)), drift=None)
        if job.role != self.role:
            own, algorithm = self.roles[job.role], self.algorithm
            algorithm = algorithm._replace(tasks=own.tasks(algorithm.tasks))
            bench = bench._replace(algorithm=algorithm, rows=own.rows(bench.rows), role=job.role)
        task = bench.algorithm.tasks[job.what]
        if job.order is not None and job.order.attack != self.attack:
            rows = self.attackers[job.order.attack].rows_for(bench.rows, task)
            bench = bench._replace(rows=rows, attack=job.order.attack)
        if job.architecture:
            bench = bench._replace(networks={job.architecture: self.networks[job.architecture]})
        if isinstance(task, Task) and task.options.solver.optimizer is not None:
            optimizer = Optimizer(task.options.solver.optimizer)
            bench = bench._replace(local=self.local._replace(optimizer=optimizer, clip=0.0))
        return bench


class RowSource(Protocol):
    """A source of a party's training rows as the model sees them."""

    def __call__(self, party: int) -> Rows: ...


class Prepared(NamedTuple):
    """A job made ready on its device: its message, rows, facts (survey included) and starting point."""

    message: Message
    state: State
    rows: Rows
    facts: Facts
    params: Tree
    buffers: Tree
    budget: Budget
    draw: Draw
    lr: float
    weight_decay: float
    held: Rows | None = None  # held out of training to judge the model (`Patience.held_out`)


def answered(bench: Bench, job: Job) -> Result:
    """Return the answer to a question; the same for every executor. ``bench``: from `Bench.of`."""
    question = question_of(bench, job)
    assert question is not None
    message, state = on_device(bench, (job.message, job.state), bench.device)
    buffers = told_buffers(bench, message)
    data = None
    if question.data != "none":
        public = Public(rows=question.rows) if question.data == "public" else None
        rows = rows_for(bench, job, Local(balanced=question.balanced, public=public))
        data = ClientData(rows, bench.classes, buffers, lambda: (), bench.network.ordered)
    bench.network.module.eval()
    with placing(bench.device), without_cudnn(bench.device):
        reply, state, session = question.answer(bench.network, data, message, state, job.session)
    reply, state, buffers = on_device(bench, (reply, state, buffers), CPU)
    if buffers and "model" in reply:
        reply = {**reply, "buffers": buffers}
    n, sealing, bare = data.n if data is not None else 0, 0.0, 0
    if job.word is not None:
        done, sealing, bare = protected(bench, job._replace(session=session), question, reply, n)
        reply, session = done.sent, done.session
    work = Work(n, 0, 0, 0.0, math.nan)
    return Result(job.client, reply, state, work, session=session, sealing=sealing, bare=bare)


def on_device(bench: Bench, values: Any, device: torch.device) -> Any:
    """Return values with their tensors on a device; unchanged if all work is done on the processor."""
    return values if bench.device == CPU else moved(values, device)


def training_of(bench: Bench, job: Job) -> Task:
    """Return the training that a job asks for."""
    task = bench.algorithm.tasks[job.what]
    assert isinstance(task, Task)
    return task


def question_of(bench: Bench, job: Job) -> Question | None:
    """Return the question that a job asks, or None."""
    task = bench.algorithm.tasks[job.what]
    return task if isinstance(task, Question) else None


def told_buffers(bench: Bench, message: Message) -> Tree:
    """Return the buffers that a party works with: those of its message, or the network's if it brings no model."""
    return copied(message.get("buffers", {} if "model" in message else bench.network.buffers()))


def rows_for(bench: Bench, job: Job, options: Local) -> Rows:
    """Return the rows of a job: the party's or public ones, all or this round's, with own labels or the message's."""
    public = options.public
    rows = bench.rows(job.client if public is None else SERVER)
    number = int(job.facts.round)
    if public is not None and public.rows and public.rows < rows.n:
        rows = rows.take(public_rows(rows.n, public.rows, job.seed, number))
    if options.balanced and rows.n:
        rows = rows.take(balanced_rows(rows.y, job.seed, number, max(job.client, 0)))
    if public is not None and public.targets:
        rows = rows._replace(y=job.message[public.targets])
    return rows.on(bench.device)


def prepare(bench: Bench, job: Job) -> Prepared:
    """Prepare a job up to its first step; the same for every executor. ``bench``: from `Bench.of`."""
    task = training_of(bench, job)
    options, streams, held = task.options, max(job.client, 0), None
    message, state = on_device(bench, (job.message, job.state), bench.device)
    rows = rows_for(bench, job, options)
    decay = bench.local.weight_decay if options.weight_decay is None else options.weight_decay
    facts = job.facts._replace(n_k=float(rows.n), weight_decay=decay)
    if options.patience is not None and options.patience.held_out:
        rows, held = parted_rows(rows, options.patience.held_out, job.seed, int(job.facts.round), streams)
    buffers = told_buffers(bench, message)
    local, budget = bench.local, budget_of(job, options)
    size = batch_size_of(options, local.batch_size, rows.n, bench.network.least)
    of_message = options.public is not None and options.public.targets
    augment = "none" if of_message else local.augment  # the targets belong to the rows as they are
    merge = local.merge and options.solver.batch_size is None  # a task's own batches are cut as its paper does
    how = (bench.built().masks, bench.fill, budget.first_epoch, bench.network.least, merge)
    draw = Draw(job.seed, int(facts.round), streams, size, augment, *how)
    if task.survey is not None:
        data = ClientData(rows, bench.classes, buffers, partial(batches, rows, budget, draw), bench.network.ordered)
        bench.network.module.eval()
        with placing(bench.device), without_cudnn(bench.device):
            facts = facts._replace(survey=task.survey(bench.network, data, message, state))
    with placing(bench.device):
        params = task.start(message, state, facts) if options.steps != 0 else Tree()
    params, buffers = parted(params, buffers)
    doing = Doing(job.client, int(facts.round), job.what, job.budget.first_epoch, rows.n)
    sampling, attacker = sampling_of(bench.protection, job.word, doing, budget, size, params), bench.attacker(job)
    taint = None if attacker is None or options.public is not None else attacker.taint
    draw = draw._replace(sampling=sampling, taint=taint)
    lr = facts.lr * options.lr_scale if options.solver.lr is None else options.solver.lr
    return Prepared(message, state, rows, facts, params, buffers, budget, draw, lr, decay, held)


def budget_of(job: Job, options: Local) -> Budget:
    """Return the amount of work of a job: the task's own, or else the job's."""
    if options.steps is None and options.epochs is None:
        return job.budget
    return Budget(options.epochs, options.steps, first_epoch=job.budget.first_epoch)


def batch_size_of(options: Local, usual: int, n: int, least: int = 1) -> int:
    """Return the rows per batch.

    The task's or the experiment's size; fewer, but at least ``least``, if n rows would not make ``pass_steps`` batches.
    """
    own = options.solver
    size = usual if own.batch_size is None else own.batch_size
    return size if own.pass_steps <= 1 or not n else min(size or n, max(n // own.pass_steps, least))


def parted(found: Tensors, buffers: Tree) -> tuple[Tree, Tree]:
    """Return parameters and buffers of a tree that may hold both; missing buffers are taken from ``buffers``."""
    if not any(name in found for name in buffers):
        return Tree(found), buffers
    own = {name: found[name].clone() if name in found else x for name, x in buffers.items()}
    return Tree({name: x for name, x in found.items() if name not in own}), Tree(own)


def finish(bench: Bench, job: Job, prepared: Prepared, params: Tree, buffers: Tree, work: Work) -> Result:
    """Finish a job after its last step; the same for every executor."""
    task = training_of(bench, job)
    facts = prepared.facts._replace(buffers=buffers) if buffers and work.steps else prepared.facts
    with placing(bench.device):
        if job.order is not None and work.steps:
            how = (bench.attackers[job.order.attack], job.order, prepared, prepared.state, params)
            params, kept = reported(*how, attack_stream(job), bench.network, bench.local)
            prepared = prepared._replace(state=kept)
        known_work = work if prepared.draw.sampling is None else work._replace(loss=math.nan)  # it has no noise
        update, state = task.finish(params, known_work, prepared.message, prepared.state, facts)
    # sealing, the server and the clients' stored values are on the processor
    update, state, buffers, known = on_device(bench, (update, state, buffers, prepared.facts), CPU)
    if (
        buffers and update and (work.steps or "model" in update)
    ):  # a model keeps its statistics, even one that took no step
        update = {**update, "buffers": buffers}
    sent, memory, session, seen, sealing, bare = update, job.memory, None, update, 0.0, 0
    try:
        if job.word is not None:
            done, sealing, bare = protected(bench, job, task, update, prepared.rows.n)
            sent, memory, session, seen = done.sent, done.memory, done.session, done.seen
        elif bench.transform is not None and memory is not None:
            sent, memory = seal(bench.transform, task, job.message, update, memory, compression_stream(job))
            seen = unseal(bench.transform, task, job.message, sent) if task.settle is not None else update
    except (DivergedError, PrivacyError) as error:
        if not left_out(bench, job.word, error) or (isinstance(error, PrivacyError) and job.order is None):
            raise  # for an honest client, a value outside the range of masks is an error of the range
        return Result(job.client, {}, prepared.state, work, memory=job.memory, session=job.session, lost=True)
    if task.settle is not None:
        state = task.settle(seen, work, job.message, state, known)
    return Result(job.client, sent, state, work, memory=memory, session=session, sealing=sealing, bare=bare)


def result_of(
    bench: Bench, job: Job, ready: Prepared, params: Tree, buffers: Tree, steps: int, examples: int, loss_sum: float
) -> Result:
    """Return the result of a training. ``loss_sum``: the sum of the losses over the ``examples`` of all steps.

    If the loss is NaN or infinity, DivergedError names the client, or only its update is left out (`Bench.spares`).
    """
    work = Work(ready.rows.n, steps, examples, steps * ready.lr, loss_sum / examples if examples else math.nan)
    if (sampling := ready.draw.sampling) is not None:  # how many rows were drawn is secret, and so is their loss
        work = work._replace(examples=steps * sampling.size)
    waits = work.steps > 0 and waits_for_others(bench.attackers, job.order)
    if waits:
        result = Result(job.client, {}, ready.state, work, memory=job.memory, session=job.session)
    else:
        result = finish(bench, job, ready, params, buffers, work)
    if waits or job.shown:
        ended = {"start": ready.params, "end": params, "buffers": buffers}
        result = result._replace(ended=on_device(bench, ended, CPU))
    if not result.work.steps or math.isfinite(result.work.loss) or sampling is not None:
        return result
    error = DivergedError(f"the training loss of client {result.client} is {result.work.loss}")
    if left_out(bench, job.word, error):
        return result._replace(update={}, lost=True)
    raise error


def attack_stream(job: Job) -> torch.Generator:
    """Return the random stream of a malicious client."""
    return torch_stream(job.seed, "attack", int(job.facts.round), job.client, job.what, job.budget.first_epoch)


def compression_stream(job: Job) -> torch.Generator:
    """Return the random stream of a transform."""
    return torch_stream(job.seed, "compression", int(job.facts.round), job.client, job.what)


def protected(bench: Bench, job: Job, task: Task | Question, update: Update, rows: int) -> tuple[Protected, float, int]:
    """Return a client's update as sent under ``[[privacy]]``, the seconds it took, and its bytes without protection."""
    assert bench.protection is not None
    assert job.word is not None
    started = time.perf_counter()
    attacker = bench.attacker(job)
    hostile = attacker is not None and attacker.craft is not None
    rows = rows if job.order is None else job.order.claims or rows
    doing = Doing(job.client, int(job.facts.round), job.what, job.budget.first_epoch, rows, job.word, hostile=hostile)
    given = (bench.protection, bench.transform, task, job.message, update, job.memory, compression_stream(job))
    done = protect(*given, job.word, job.session, doing)
    bare = codec.size(update if bench.protection.masks else unaided(done.sent, update))
    return done, time.perf_counter() - started, bare


def job_batches(prepared: Prepared, values: Values | None = None) -> Any:
    """Return the batches of a prepared job, with values by row if the step takes any."""
    return batches(prepared.rows, prepared.budget, prepared.draw, values)
