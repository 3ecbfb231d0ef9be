"""What a step computes of its rows alone: taken out of it, once for all rows, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithm import (
    Algorithm,
    Batch,
    Budget,
    Data,
    Demands,
    Facts,
    Message,
    Network,
    State,
    Task,
    Update,
    Work,
)
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine import fast
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.program import StepProgram
from fedatlas.engine.stacked_executor import StackedExecutor
from fedatlas.models import MODELS
from fedatlas.tree import Tree
from federation import Federation, federation, gap, play, rows

pytestmark = pytest.mark.usefixtures("small_networks_too")
EVEN = (6, 12, 10, 22, 7)  # no batch of 4 is left with a single row
PLAN = [(0, 1, 2), (1, 2, 3), (0, 1, 3)]
SHAPES = {"mlp": (4,), "cnn1": (1, 12, 12), "lenet5": (3, 32, 32)}


@pytest.fixture
def small_networks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever little a part computes."""
    monkeypatch.setattr("fedatlas.engine.rowwise._LEAST", 0)


def random(*shape: int, key: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(key))


def runs(fed: Federation, step: str = "program") -> tuple[float, FastRunner]:
    """How far the engine ends from the oracle, and its runner."""
    runners = []

    def quick(bench: Bench) -> SerialExecutor | StackedExecutor:
        runners.append(FastRunner(bench, [held.n for held in fed.held.values()], step, "float64"))
        return StackedExecutor(bench, runners[0], 3) if step == "stacked" else SerialExecutor(bench, runners[0])

    return gap(play(fed, PLAN, lr=0.05)[0], play(fed, PLAN, lr=0.05, make=quick)[0]), runners[0]


def moon(model: str, **options: object) -> Federation:
    held = {k: r._replace(x=random(r.n, *SHAPES[model], key=k)) for k, r in rows(EVEN).items()}
    return federation(ALGORITHMS["moon"](mu=5.0), held, make=partial(MODELS[model], SHAPES[model], 3), **options)  # type: ignore[arg-type]


def products(runner: FastRunner) -> int:
    """Matrix products and convolutions of a step."""
    made = runner.steps["train", 4]
    assert isinstance(made, StepProgram)
    return sum(made.source.count(name) for name in ("mm(", "mm_(", "mm_out(", "convolution("))


@pytest.mark.parametrize("step", [pytest.param("program", marks=pytest.mark.slow), "stacked"])
@pytest.mark.parametrize("model", ["mlp", "cnn1", pytest.param("lenet5", marks=pytest.mark.slow)])
def test_what_frozen_networks_make_of_a_row_is_computed_once(
    model: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MOON's two references: dense, convolutional with one and with three channels; in ragged batches, too."""
    fed = moon(model)
    far, runner = runs(fed, step)
    assert far < 1e-10
    found = runner.rows["train"]
    assert found.shapes == ((fed.bench.network.features(fed.params, sample(fed)).shape[1],),)
    assert {path.split("/")[1] for path in found.paths} == {"message", "client"}
    monkeypatch.setattr(fast, "ROOM", 0)  # no memory for a row's values: they stay in the step
    far, whole = runs(fed, step)
    assert far < 1e-10
    assert not whole.rows
    assert products(whole) > products(runner)


def sample(fed: Federation) -> Batch:
    held = fed.held[0]
    return Batch(held.x, held.y)


@pytest.mark.parametrize("budget", [Budget(steps=1), Budget(steps=4), Budget(epochs=2)])
def test_a_job_that_does_not_see_all_its_rows_computes_those_it_sees(budget: Budget) -> None:
    fed = moon("mlp", budget=budget)
    asked: list[int] = []
    far, runner = runs(fed)
    assert far < 1e-10
    values = runner.rows["train"].of

    def counted(inputs: Mapping[str, object], buffers: Mapping[str, Tensor]) -> Callable[[Tensor], dict[str, Tensor]]:
        inner = values(inputs, buffers)

        def count(x: Tensor) -> dict[str, Tensor]:
            asked.append(len(x))
            return inner(x)

        return count

    runner.rows["train"] = type("Counted", (), {"of": staticmethod(counted)})()  # type: ignore[assignment]
    play(fed, [(1,), (1,)], make=lambda bench: SerialExecutor(bench, runner))
    assert asked == 2 * ([4] if budget.steps == 1 else [12])


def test_rows_that_are_cropped_anew_are_computed_anew() -> None:
    far, runner = runs(moon("cnn1", augment="crop_flip"))
    assert far < 1e-10
    assert runner.rows


def own(objective: Callable[..., Tensor]) -> Algorithm:
    """FedAvg with another objective."""
    plain = ALGORITHMS["fedavg"]()
    return plain._replace(name="own", demands=Demands(features=True), tasks={"train": Task(objective=objective)})


def beside(of_features: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The loss, and something of the message's frozen features."""

    def objective(
        model: Network, w: Mapping[str, Tensor], batch: Batch, message: Message, client: State, facts: Facts
    ) -> Tensor:
        z_g = model.features(message["model"], batch, frozen=True)
        loss, z = model.loss_and_features(w, batch)
        return loss + ((z - of_features(z_g)) ** 2).mean()

    return objective


MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "less the batch's mean": lambda z: z - z.mean(0),
    "in another order": lambda z: z.flip(0),
    "sorted": lambda z: z.sort(0).values,
    "along both": lambda z: z / z.norm(),
    "summed along": lambda z: z.cumsum(0),
    "by each other": lambda z: (z @ z.T).softmax(1) @ z,
    "one row for all": lambda z: z[:1].expand(len(z), -1),
    "added to others": lambda z: torch.addmm(
        torch.arange(6.0 * len(z), dtype=z.dtype).reshape(-1, 6), z, torch.eye(6, dtype=z.dtype)
    ),
    "wrapped around": lambda z: z.T.reshape(len(z), -1),
    "over their number": lambda z: z / len(z),
    "over a tensor of their number": lambda z: z * torch.tensor([1.0 / len(z)], dtype=z.dtype),
    "times a row's place": lambda z: z * torch.arange(len(z), dtype=z.dtype)[:, None],
}
ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda z: z,
    "in groups": lambda z: z.reshape(len(z), 3, 2).softmax(2).reshape(len(z), 6),
    "turned": lambda z: z.reshape(len(z), 2, 3).permute(0, 2, 1).reshape(len(z), 6),
    "sized anew": lambda z: z.view(len(z), -1).reshape(-1, 6).view(len(z), 2, -1).flatten(1),
    "normal": lambda z: (z - z.mean(1, keepdim=True)) / (z.norm(dim=1, keepdim=True) + 1),
    "doubled": lambda z: torch.cat((z, 2 * z), dim=1)[:, 3:9].contiguous(),
    "times a row of numbers": lambda z: z * torch.arange(6, dtype=z.dtype),
}


@pytest.mark.parametrize("how", [how for how in MIXED if not how.startswith("over")])
def test_what_mixes_rows_stays_in_the_step(how: str) -> None:
    """The frozen features themselves are taken out; what becomes of them beside other rows is not."""
    far, runner = runs(federation(own(beside(MIXED[how])), rows(EVEN)))
    assert far < 1e-10
    assert runner.rows["train"].shapes == ((6,),)


def test_a_number_of_each_row_is_not_one_of_each_column() -> None:
    """With as many rows as features, one number a row (6,) beside (6, 6) goes along the columns."""
    far, runner = runs(federation(own(beside(lambda z: z * z.sum(1))), rows((12, 12, 12, 12)), batch_size=6))
    assert far < 1e-10
    assert set(runner.rows["train"].shapes) == {(6,), ()}


@pytest.mark.parametrize("how", ["over their number", "over a tensor of their number"])
def test_what_holds_the_number_of_rows_is_another_graph_for_each(how: str) -> None:
    """Batches of 4 and of 3 rows, with a program for both: nothing is taken out."""
    far, runner = runs(federation(own(beside(MIXED[how])), rows((7, 7, 7, 7))))
    assert far < 1e-10
    assert not runner.rows
    assert all(isinstance(runner.steps["train", size], StepProgram) for size in (3, 4))
    assert runs(federation(own(beside(ALONE["normal"])), rows((7, 7, 7, 7))))[1].rows


@pytest.mark.parametrize("how", ALONE)
def test_what_becomes_of_one_row_goes_with_it(how: str) -> None:
    far, runner = runs(federation(own(beside(ALONE[how])), rows(EVEN)))
    assert far < 1e-10
    assert runner.rows["train"]


def test_nothing_is_taken_out_of_a_step_whose_products_are_all_trained() -> None:
    for name in ("fedavg", "fedprox", "scaffold", "feddyn", "ditto"):
        assert not runs(federation(ALGORITHMS[name]()))[1].rows


def test_a_norm_that_follows_the_batches_stays_in_the_step() -> None:
    """Running statistics change with every step, and with them what the frozen network makes of a row."""
    make = partial(MODELS["mlp"], (4,), 3, hidden=(6, 5), norm="batch")
    held = {k: r for k, r in rows(EVEN).items() if r.n % 6 != 1}  # batch norm has no variance of one row
    far, runner = runs(federation(ALGORITHMS["moon"](mu=5.0), held, make=make, batch_size=6))
    assert far < 1e-9
    if "train" in runner.rows:  # up to the first norm at most
        assert not any("running" in path for path in runner.rows["train"].paths)


def test_frozen_layers_below_trained_ones() -> None:
    """A head alone is trained: the step is handed what the frozen body makes of the rows."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
            self.body.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x)))

    far, runner = runs(federation(ALGORITHMS["fedavg"](), rows(EVEN), make=Frozen))
    assert far < 1e-12
    assert runner.rows["train"].paths == ("buffers/body.weight", "buffers/body.bias")


def test_a_part_that_fails_its_check_leaves_the_program_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is wrongly taken to go row by row is found on other rows, and costs nobody the program."""
    monkeypatch.setattr("fedatlas.engine.rowwise._EACH", {torch.ops.aten.flip.default, torch.ops.aten.sort.default})
    far, runner = runs(federation(own(beside(MIXED["in another order"])), rows(EVEN)))
    assert far < 1e-10
    assert not runner.rows
    assert isinstance(runner.steps["train", 4], StepProgram)


def test_where_batches_of_one_row_are_common_the_step_stays_whole() -> None:
    """With one row, what goes along the rows looks like what is the same for all of them."""
    far, runner = runs(federation(ALGORITHMS["moon"](mu=5.0), rows((5, 9, 5, 9))))
    assert far < 1e-10
    assert not runner.rows
    assert all(isinstance(runner.steps["train", size], StepProgram) for size in (1, 4))


def test_a_part_that_gives_more_than_it_computes_stays_in_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight multiplications a number: fetching them would take as long."""
    monkeypatch.setattr("fedatlas.engine.rowwise._LEAST", 9)
    assert not runs(federation(ALGORITHMS["moon"](mu=5.0), rows(EVEN)))[1].rows
    monkeypatch.setattr("fedatlas.engine.rowwise._LEAST", 8)
    assert runs(federation(ALGORITHMS["moon"](mu=5.0), rows(EVEN)))[1].rows


@pytest.mark.parametrize("step", ["program", "stacked"])
def test_clients_whose_survey_says_other_things_take_the_tuned_step(step: str) -> None:
    """Some bring a teacher of their own, some none: a program, and values by row, are for the first sort alone."""

    def survey(model: Network, data: Data, message: Message, client: State) -> Mapping[str, Tensor]:
        return {"teacher": torch.full((6, 4), 0.1, dtype=torch.float64)} if data.n % 4 else {}

    def objective(
        model: Network, w: Mapping[str, Tensor], batch: Batch, message: Message, client: State, facts: Facts
    ) -> Tensor:
        loss, z = model.loss_and_features(w, batch)
        return loss + ((z - batch.x @ facts.survey["teacher"].T) ** 2).mean() if "teacher" in facts.survey else loss

    algorithm = own(objective)
    task = algorithm.tasks["train"]._replace(survey=survey)
    far, runner = runs(federation(algorithm._replace(tasks={"train": task}), rows(EVEN)), step)
    assert far < 1e-10
    assert runner.rows


def test_a_start_that_cuts_the_model_by_a_clients_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that message and state do not show: whose they are not takes the tuned step."""
    monkeypatch.setattr(fast, "LONG", 0)

    def start(message: Message, client: State, facts: Facts) -> Tree:
        width = 3 if facts.n_k > 11 else 6
        model = message["model"]
        cut = {"hidden.weight": model["hidden.weight"][:width], "hidden.bias": model["hidden.bias"][:width]}
        return Tree({**model, **cut, "head.weight": model["head.weight"][:, :width]})

    def finish(w: Tree, work: Work, message: Message, client: State, facts: Facts) -> tuple[Update, State]:
        whole = message["model"].map(torch.clone)
        for name, x in w.items():
            whole[name][tuple(slice(n) for n in x.shape)] = x
        return {"model": whole}, {}

    plain = ALGORITHMS["fedavg"]()
    task = plain.tasks["train"]._replace(start=start, finish=finish, reshapes=True)
    far, runner = runs(federation(plain._replace(name="own", tasks={"train": task}), rows(EVEN)))
    assert far < 1e-12
    assert any("operators" in note for note in runner.notes())
