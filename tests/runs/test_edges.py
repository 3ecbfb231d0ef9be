"""Where a run is at the edge of what it can do: the smallest batch, no common batch size, one score for two classes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.live import Live
from torch import nn

import fedatlas
from configured import run_one, set_up
from fedatlas import Experiment, catalogue, cli, config, plugins, terminal
from fedatlas.aggregation.reducers import WeightedSum, part_of
from fedatlas.algorithm import Budget
from fedatlas.algorithms import ALGORITHMS
from fedatlas.api import run
from fedatlas.course.plan import resolve_plan
from fedatlas.data.batches import Draw, Rows, batches
from fedatlas.data.files import load_arrays
from fedatlas.data.loaded import LoadRequest
from fedatlas.data.store import Store
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import run_job
from fedatlas.engine.pool import PoolExecutor, arena_of, can_fork
from fedatlas.errors import ConfigError, DataError, DivergedError, first_line
from fedatlas.runs import preview
from fedatlas.runs.baselines import wants_baselines
from fedatlas.setup.assembly import Setup
from fedatlas.setup.checked import Checked
from fedatlas.terminal import Lively, Plain
from federation import federation, gap, play

FEW = ("partition={name='iid', clients=4}", "rounds=2", "data.limit=200")


def test_clients_without_a_common_batch_size_train_alone(tmp_path: Path) -> None:
    """All rows at once, and no two clients hold as many: a stack of them has no program."""
    chosen = [
        "algorithm.name=fedsgd",
        "partition={name='quantity_skew', clients=12}",
        "rounds=2",
        "engine.plan=stacked",
    ]
    done = run_one(config.read(None, chosen), tmp_path / "run")
    assert done.summary["final"]["accuracy"] > 0


def test_work_of_no_steps_leaves_the_model_as_it_was() -> None:
    fed = federation(ALGORITHMS["fedavg"](), budget=Budget(steps=0))
    begun = fed.begin()
    after, _ = play(fed, 1, server=begun)
    assert gap(begun["model"], after["model"]) < 1e-15


@pytest.mark.parametrize("loss", ["bce", "hinge", "squared_hinge"])
def test_fedseq_groups_by_confidence_where_a_model_gives_one_score(loss: str, tmp_path: Path) -> None:
    chosen = [
        "algorithm.name=fedseq",
        "data.name=breast_cancer_wdbc",
        f"model.loss={loss}",
        "algorithm.pretrain_epochs=1",
    ]
    done = run_one(config.read(None, [*chosen, "rounds=1", "partition={name='iid', clients=4}"]), tmp_path / "run")
    assert sorted(k for group in done.summary["groups"] for k in group) == [0, 1, 2, 3]


def test_pictures_are_not_padded_with_a_colour_of_each_client() -> None:
    with pytest.raises(ConfigError, match=r"data.augment = 'crop_flip' pads with black"):
        set_up(config.read(None, [*FEW, "data.augment=crop_flip", "data.scale=client"]), 1)


def test_a_batch_that_batch_norm_cannot_use_is_left_out(tmp_path: Path) -> None:
    rows = Rows(torch.arange(9.0)[:, None], torch.zeros(9, dtype=torch.int64))
    sizes = [[len(b.x) for b in batches(rows, Budget(epochs=2), Draw(1, 1, 0, 4, least=least))] for least in (1, 2)]
    assert sizes == [[4, 4, 1, 4, 4, 1], [4, 4, 4, 4]]
    sizes = [[len(b.x) for b in batches(rows, Budget(steps=5), Draw(1, 1, 0, 4, least=least))] for least in (1, 2)]
    assert sizes == [[4, 4, 1, 4, 4], [4, 4, 4, 4, 4]]  # what is left out is no step
    done = run_one(
        config.read(None, [*FEW, "algorithm.name=centralised", "model.norm=batch", "local.batch_size=199"]),
        tmp_path / "run",
    )
    assert done.summary["final"]["loss"] > 0


def test_a_loss_with_a_domain_reads_the_target_in_its_own_unit(tmp_path: Path) -> None:
    """msle: standardised targets would leave its domain, or be squeezed by it (L2)."""
    rows = "\n".join(f"{i % 7},{1 + (i % 7) ** 2}.5" for i in range(60))
    (tmp_path / "t.csv").write_text(f"x,y\n{rows}\n")
    data = {"name": "file", "path": str(tmp_path / "t.csv"), "label": "y", "test": 0.2}
    tables = {
        "rounds": 3,
        "data": data,
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "loss": "msle"},
    }
    made = Experiment.of(**tables)
    done = run(made, out=tmp_path / "run", baselines=False)
    loaded = fedatlas.load(done.path)
    assert (loaded.preprocess.target_mean, loaded.preprocess.target_sd) == (0, 1)
    assert set_up(loaded.config, 1).dataset.train.x.abs().max() < 3  # inputs are standardised all the same
    (tmp_path / "t.csv").write_text(f"x,y\n{rows}\n1,-2.5\n")
    with pytest.raises(DataError, match=r"'msle' needs numbers above -1; the (test )?label of row \d+ is -2.5"):
        run(made, out=tmp_path / "again", baselines=False)
    low = "\n".join(f"{i % 7},{-0.99 + 0.001 * (i % 7)}" for i in range(60))  # a step too far below -1
    (tmp_path / "t.csv").write_text(f"x,y\n{low}\n")
    with pytest.raises(DivergedError, match=r"'msle' is undefined for predictions of -1 or less"):
        run(Experiment.of(**tables, local={"lr": 1.0}), out=tmp_path / "far", baselines=False)


def test_batch_norm_refuses_batches_of_one_row() -> None:
    with pytest.raises(ConfigError, match=r"local.batch_size = 1: batch norm"):
        set_up(config.read(None, [*FEW, "model.norm=batch", "local.batch_size=1"]), 1)


def test_whether_baselines_are_cheap_counts_steps() -> None:
    asked = [config.read(None, [f"local.steps={steps}"]) for steps in (10, 10_000_000)]
    assert [wants_baselines(c, [100] * 4, 400, 10_000, None) for c in asked] == [True, False]
    assert not wants_baselines(
        asked[0], [100] * 4, 400_000_000, 10_000, None
    )  # so many rows to judge clients' models on


def test_another_component_takes_the_place_of_the_files(tmp_path: Path) -> None:
    """A key of the file's algorithm goes with it; those of the table stay."""
    file = tmp_path / "e.toml"
    file.write_text(
        '[algorithm]\nname = "fedyogi"\nserver_lr = 0.03\n[partition]\nname = "dirichlet"\nalpha = 0.3\nclients = 7\n'
    )
    other = config.read(file, ["algorithm.name=fedavg", "partition.name=iid", "local.lr=0.01"])
    assert (other.algorithm.parameters(), other.partition.parameters(), other.partition.clients) == ({}, {}, 7)
    same = config.read(file, ["algorithm.name=fedyogi"])
    assert same.algorithm.parameters() == {"server_lr": 0.03}


def test_weights_stand_in_the_order_of_the_clients(tmp_path: Path) -> None:
    """Who scored and was then left out of the mean has the weight 0."""
    run_one(config.read(None, ["algorithm={name='hwfedavg', exclude_above=0.05}", "rounds=1"]), tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert len(row["weights"]) == len(row["clients"]) == 12
    assert 0.0 in row["weights"]
    assert sum(row["weights"]) == pytest.approx(1)


def test_a_run_gives_torch_its_threads_back_and_says_what_its_steps_were(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        done = run(Experiment(config.read(None, FEW)), out=tmp_path / "run", baselines=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert any("gradient straight from a product" in said for said in done.summary["plan"]["steps"])
    assert "gradient straight from a product" in (done.path / "report.html").read_text()


def test_a_stack_has_no_workers() -> None:
    with pytest.raises(ConfigError, match=r"engine.workers = 2: one process trains the stack"):
        config.read(None, ["engine.plan=stacked", "engine.workers=2"])


class Branching(nn.Module):
    """Asks for a number of its rows, which no program can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.head(x if float(x.sum()) > 0 else -x)


@pytest.mark.parametrize("module", [Branching(), None])
def test_a_network_that_no_program_fits_is_said_to_be_slower(
    module: nn.Module | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is chosen before a step is derived: where that fails, the end says so, and why."""
    run(Experiment(config.read(None, FEW), module), out=tmp_path / "run", baselines=False, progress=Plain())
    said = " ".join(capsys.readouterr().err.split())
    assert ("Local training used plain autograd, which is slower than a derived step: a value decides" in said) == bool(
        module
    )


def test_the_terminal_is_given_back_however_a_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Lively()
    shown.live = live = Live("", console=shown.out)
    live.start()
    monkeypatch.setattr(terminal, "watcher", lambda quiet: shown)
    with pytest.raises(ConfigError, match=r"local\.lr"):
        cli.run(["local.lr=-1"])
    assert not live.is_started


def test_baselines_do_as_many_rounds_as_the_run_that_stopped_early(tmp_path: Path) -> None:
    stops = ["rounds=6", "stop.accuracy=0.01", "data.limit=200", "partition={name='iid', clients=4}"]
    done = run(Experiment(config.read(None, stops)), out=tmp_path / "run", baselines=True)
    alone = [
        fedatlas.load(done.path / "baselines" / name).rows["round"].max() for name in ("local_only", "centralised")
    ]
    assert alone == [fedatlas.load(done.path).rows["round"].max()] * 2 == [0, 0]


def test_the_record_names_every_key_of_a_component(tmp_path: Path) -> None:
    """What was left to a default and what was written in full are one experiment."""
    implicit, explicit = (set_up(config.read(None, [*FEW, *more]), 1).config for more in ((), ("model.hidden=[64]",)))
    assert implicit.hash() == explicit.hash()
    done = run_one(config.read(None, FEW), tmp_path / "run")
    recorded = tomllib.loads((done.path / "config.toml").read_text())
    assert (recorded["model"]["hidden"], recorded["algorithm"]["weights"]) == ([64], "samples")
    assert config.read(done.path / "config.toml").hash() == implicit.hash()


def test_a_dry_run_counts_seeds_and_baselines() -> None:
    one, several = (
        fedatlas.dry_run(Experiment(config.read(None, [*FEW, *more]))) for more in ((), ("seeds=[1, 2, 3]",))
    )
    assert several["bytes_total"] == 3 * one["bytes_total"]
    assert one["seconds_about"] > one["seconds_baselines"] > 0
    assert fedatlas.dry_run(Experiment(config.read(None, FEW)), baselines=False)["seconds_baselines"] == 0


def test_a_dry_run_finds_what_a_later_seed_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = preview.set_up

    def only_the_first(whole: Checked) -> Setup:
        if whole.config.seed == 2:
            raise ConfigError("client 3 would be empty")
        return ours(whole)

    monkeypatch.setattr(preview, "set_up", only_the_first)
    with pytest.raises(ConfigError, match="client 3"):
        fedatlas.dry_run(Experiment(config.read(None, [*FEW, "seeds=[1, 2]"])))


def test_validation_rows_are_called_so_and_test_rows_are_judged_once(tmp_path: Path) -> None:
    done = run(Experiment(config.read(None, [*FEW, "evaluation.on=validation"])), out=tmp_path / "run", baselines=False)
    assert (
        f'value="{done.summary["test"]["accuracy"]!r}" data-key="run:test.accuracy"'
        in (done.path / "report.html").read_text()
    )
    assert 0 < done.summary["test"]["accuracy"] < 1
    assert done.summary["test"]["accuracy"] != done.summary["final"]["accuracy"]
    assert any("validation rows; the test rows are used once" in notice for notice in done.summary["notices"])


def test_how_to_repeat_a_run_names_its_plugins_and_its_own_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "LOADED", {"my plan.py": "its SHA-256"})
    done = run(Experiment(config.read(None, FEW)), out=tmp_path / "a", baselines=False)
    assert (
        "fedatlas run experiment.toml --no-baselines --plugin &#39;my plan.py&#39;"
        in (done.path / "report.html").read_text()
    )
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    done = run(Experiment(config.read(None, FEW), own), out=tmp_path / "b", baselines=False)
    assert "module=module), baselines=False)" in (done.path / "report.html").read_text()


def test_there_are_no_more_workers_than_clients() -> None:
    plan = resolve_plan(set_up(config.read(None, [*FEW, "engine.workers=1000"]), 1))
    assert (plan.workers, plan.reason) == (4, "no more than there are clients")


def test_a_test_file_brings_its_own_weights_and_owners(tmp_path: Path) -> None:
    """Those of the first file's test rows are not its; a list of owners of another length is refused."""
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1] * 3)
    np.savez(
        tmp_path / "a.npz",
        x_train=x,
        y_train=y,
        x_test=x[:2],
        y_test=y[:2],
        weight_train=np.ones(6),
        weight_test=np.full(2, 9.0),
    )
    np.savez(tmp_path / "b.npz", x_test=x[2:4], y_test=y[2:4], weight_test=np.array([3.0, 4.0]))
    loaded = load_arrays(tmp_path / "a.npz", "auto", LoadRequest(Store.default(), 1, str(tmp_path / "b.npz")))
    assert loaded.test is not None
    assert loaded.test.weight is not None
    assert loaded.test.weight.tolist() == [3.0, 4.0]
    np.savez(tmp_path / "c.npz", x_test=x[2:4], y_test=y[2:4])
    bare = load_arrays(tmp_path / "a.npz", "auto", LoadRequest(Store.default(), 1, str(tmp_path / "c.npz")))
    assert bare.test is not None
    assert bare.test.weight is None
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2], client_train=y, client_test=y)
    with pytest.raises(DataError, match="client_test has 6 entries for 2 rows"):
        load_arrays(tmp_path / "d.npz", "auto", LoadRequest(Store.default(), 1))


def test_predictions_of_pictures_name_the_file(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(8):
            images.fromarray(np.full((8, 8), 200 * (name == "dog") + i, np.uint8)).save(
                tmp_path / "pictures" / name / f"{i}.png"
            )
    chosen = [
        f"data={{name='file', path='{tmp_path / 'pictures'}', size=8, test=0.25}}",
        "partition={name='iid', clients=2}",
        "rounds=1",
    ]
    done = run_one(config.read(None, chosen), tmp_path / "run")
    found = fedatlas.predict(done.path, tmp_path / "pictures" / "dog")
    assert list(found["file"]) == [f"{i}.png" for i in range(8)]


def test_weights_by_part_need_no_part_called_model() -> None:
    total = WeightedSum()
    total.add({"a": torch.ones(1), "buffers": torch.ones(1)}, {"a": 0.5})
    assert [float(x) for x in total.total.values()] == [0.5, 0.5]
    assert part_of({"a": 0.5, "model": 0.2}, "buffers") == 0.2


def test_a_second_moment_is_never_divided_by_nothing() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.tau = 0: expected a number above 0"):
        set_up(config.read(None, ["algorithm.name=fedadam", "algorithm.tau=0"]), 1)


def test_what_somebody_elses_error_says_is_never_nothing() -> None:
    assert [first_line(e) for e in (ValueError(), ValueError("a.\nb"))] == ["ValueError", "a"]


def test_show_says_what_keys_mean_and_what_a_study_costs() -> None:
    assert "units of each hidden layer" in catalogue.entry("mlp")["accepts"]["hidden"]
    assert "weight" in catalogue.entry("file")["source"]
    blog = catalogue.entry("blog")
    assert (blog["runs"], blog["rounds"]) == (36, 100)


def test_doctor_knows_every_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert catalogue.EXTRAS.keys() == project["optional-dependencies"].keys() - {"test", "docs"}


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            "algorithm={name='fedseq', phi='random', pretrain_epochs=3}",
            "algorithm.pretrain_epochs = 3 is not used: phi =",
        ),
        ("algorithm={name='fedseq', layers='last'}", "algorithm.layers = 'last' is not used: psi = 'conf'"),
        ("algorithm={name='fedseq', psi='clf', normalise='softmax'}", "algorithm.normalise = 'softmax' is not used"),
        ("algorithm={name='fedseq', phi='kmeans', first='random'}", "algorithm.first = 'random' is not used: k-means"),
        ("algorithm={name='fedseq', min_examples=300, group_size=4}", "algorithm.group_size = 4 is not used"),
        (
            "algorithm={name='fedseq', anchor='server'}",
            "algorithm.anchor = 'server' is not used: 'fedavg' has no anchor",
        ),
        ("algorithm={name='fedmd', temperature=3}", "algorithm.temperature = 3 is not used: digest = 'l1'"),
        ("algorithm={name='feddf', steps=0, patience=9}", "algorithm.patience = 9 is not used: steps = 0 leaves"),
        ("algorithm={name='ifca', clusters=1, starts=7}", "algorithm.starts = 7 is not used: there is one cluster"),
        ("algorithm={name='fesem', clusters=1, pretrain_epochs=7}", "algorithm.pretrain_epochs = 7 is not used"),
        ("local.eps=0.1", "local.eps is not used: only Adam has it"),
        ("local.betas=[0.5, 0.9]", "local.betas is not used: only Adam has it"),
        ("evaluation.validation=0.3", "evaluation.validation is not used"),
        ("failures.stragglers=0.5", "failures.stragglers is not used: a straggler runs 1 to"),
        ("failures.straggler_policy='drop'", "failures.straggler_policy is not used"),
    ],
)
def test_what_does_nothing_beside_another_key_is_said(chosen: str, said: str) -> None:
    notices = set_up(config.read(None, [chosen]), 1).notices
    assert [said in notice for notice in notices if "is not used" in notice] == [True]


def test_what_is_used_is_not_said_to_be_unused() -> None:
    for chosen in (
        "algorithm={name='fedseq', anchor='server', rule={name='fedprox'}}",
        "algorithm={name='fedseq', psi='clf', start='code', layers='last'}",
        "algorithm={name='fedmd', digest='kl', temperature=3}",
    ):
        assert not [n for n in set_up(config.read(None, [chosen]), 1).notices if "is not used" in n]
    notices = set_up(config.read(None, ["algorithm.name=fedmd", "local.steps=9"]), 1).notices
    assert [n[:25] for n in notices if "is not used" in n] == ["local.steps = 9 is not us"]


@pytest.mark.parametrize("name", ["gossip", "push_sum"])
def test_a_node_without_rows_is_refused(name: str) -> None:
    """It never takes part, so that the graph falls apart; on a directed ring the run ended in numbers that are none."""
    split = "partition={name='dirichlet_fedseq', clients=20, alpha=0.02}"
    with pytest.raises(ConfigError, match="2 clients have no rows, but every node"):
        set_up(config.read(None, [f"algorithm.name={name}", split]), 2)
    assert "compression" in catalogue.entry(name)["refuses"]


def test_scaffold_by_the_distance_gone_takes_no_clipped_steps() -> None:
    """Option II reads the mean gradient off the way, which a clipped step does not go (H11)."""
    with pytest.raises(ConfigError, match=r"local.clip = 1.0: 'scaffold' works only with 0.0"):
        set_up(config.read(None, ["algorithm.name=scaffold", "local.clip=1"]), 1)
    set_up(config.read(None, ["algorithm={name='scaffold', option='I'}", "local.clip=1"]), 1)


def test_clients_of_which_half_are_turned_by_ninety_degrees_train(tmp_path: Path) -> None:
    """Turned pictures are not laid out row by row, and a step that was derived on others views them so."""
    turned = "partition={name='feature_skew', clients=8, rotate=[0, 90], noise=0}"
    done = run_one(config.read(None, ["rounds=1", "engine.workers=1", turned]), tmp_path / "run")
    assert done.summary["final"]["accuracy"] > 0.1


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers")
@pytest.mark.parametrize(("chunk", "slots"), [(1, 1), (3, 3), (40, 16)])
def test_shared_memory_holds_no_more_answers_than_a_chunk(chunk: int, slots: int) -> None:
    """A chunk of one is chosen where memory is short."""
    made: list[PoolExecutor] = []

    def pool(bench: Bench) -> PoolExecutor:
        made.append(PoolExecutor(bench, run_job, 2, chunk))
        return made[0]

    fed = federation(ALGORITHMS["fedavg"]())
    assert gap(play(fed, 1)[0], play(fed, 1, make=pool)[0]) < 1e-12
    arena = made[0].arena
    assert arena is not None
    assert len(arena.answers) == slots * arena.slot
    made[0].close()


def test_shared_memory_that_cannot_be_had_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"for the messages and answers of 3 clients .*lower engine\.chunk"):
        arena_of(1 << 10, 1 << 60, 3)
