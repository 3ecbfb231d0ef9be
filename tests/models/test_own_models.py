"""A user's own network: as a module, and by entry point."""

import functools
import random
import re
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import federation as small
from fedatlas import Experiment, catalogue, load, machine, registry, run
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.stacked_executor import StackedExecutor
from fedatlas.errors import ConfigError
from fedatlas.models import (
    MODELS,
    ModelConfig,
    dropout_shapes,
    find_model,
    make_model,
    parameter_count,
)
from fedatlas.registry import PLUGINS
from fedatlas.rng import derive


def test_numbers_of_a_users_module():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(3)
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
            self.register_buffer("flag", torch.tensor(True))
            self.a = nn.Linear(3, 3)
            self.b = self.a  # one layer under two names: the state dict holds both

    assert parameter_count(Odd()) == 6 + 12


def test_a_package_brings_its_model_by_entry_point(tmp_path, monkeypatch):
    (tmp_path / "brought.py").write_text(
        textwrap.dedent("""
            from torch import nn
            def tiny(shape, outputs, *, bias: bool = True):
                \"\"\"A tiny one.\"\"\"
                return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], outputs, bias=bias))
        """)
    )
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedatlas.models]\ntiny = brought:tiny\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "brought", raising=False)
    assert find_model("tiny").__doc__ == "A tiny one."
    assert machine.versions()["brought"] == "1.0"
    monkeypatch.delitem(registry.INSTALLED, "brought")
    model = make_model(ModelConfig(name="tiny", bias=False), (5,), 2, seed=1)
    assert parameter_count(model) == 10


class Own(nn.Module):
    def __init__(self, p=0.3):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(p), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))


def test_a_users_module_is_copied_with_its_weights_and_our_dropout():
    own = Own()
    model = make_model(own, (6,), 3, seed=1)
    assert isinstance(own.drop, nn.Dropout)
    assert dropout_shapes(model, torch.zeros(2, 6)) == {"drop.mask": (8,)}
    assert torch.equal(model.first.weight, own.first.weight)
    with torch.no_grad():
        model.first.weight.zero_()
    assert own.first.weight.any()


def test_a_users_module_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"model 'Own' cannot read rows of shape \(5,\)"):
        make_model(Own(), (5,), 3, seed=1)
    with pytest.raises(ConfigError, match=r"must return a tensor \(2, 4\) for two rows of shape \(6,\)"):
        make_model(Own(), (6,), 4, seed=1)


def test_a_lazy_layer_is_drawn_from_the_seed():
    a, b, c = (
        make_model(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), (2, 4), 3, seed=s)[1].weight for s in (1, 1, 2)
    )
    assert a.shape == (3, 8)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


class Turned(nn.Module):
    """A parameter, a frozen one and a buffer whose elements do not lie one after another; a row with odd strides."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(5, 4).t())
        self.frozen = nn.Parameter(torch.randn(3, 5).t(), requires_grad=False)
        self.register_buffer("fixed", torch.randn(3, 5).t())
        self.row = nn.Parameter(torch.randn(1, 5).t())
        self.filters = nn.Parameter(torch.randn(2, 3, 3, 1).permute(0, 3, 1, 2).contiguous())

    def forward(self, x):
        h = torch.tanh(x @ self.first) * self.row.squeeze(1)
        plane = nn.functional.conv2d(h.reshape(-1, 1, 1, 5), self.filters, padding=1).sum((1, 2, 3))
        return h @ (self.frozen + self.fixed) + plane.unsqueeze(1) * torch.tensor([0.0, 0.1, 0.2], dtype=x.dtype)


@pytest.mark.parametrize("step", ["program", "tuned", "stacked"])
def test_any_layout_of_parameters_and_buffers_trains(step):
    """In every round: messages bring the tensors of later rounds with their elements one after another."""

    def fast(bench):
        runner = FastRunner(bench, small.SIZES, "program" if step == "stacked" else step, "float64")
        return StackedExecutor(bench, runner, 3) if step == "stacked" else SerialExecutor(bench, runner)

    fed = small.federation(ALGORITHMS["scaffold"](), make=Turned)
    expected, _ = small.play(fed)
    found, host = small.play(fed, make=fast)
    assert small.gap(expected, found) < 1e-11
    assert (step == "tuned") == any("asked for" in note for note in host.executor.run_job.notes())
    assert not any("fails" in note for note in host.executor.run_job.notes())


class Tied(nn.Module):
    """A weight and a buffer under two names each."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(64))
        self.register_buffer("again", self.shift)

    def forward(self, x):
        h = torch.tanh(self.first(x.flatten(1)) + self.shift)
        return self.last(torch.tanh(self.second(h) + self.again))


def test_tied_weights_train_and_come_back_tied(tmp_path):
    """Under every engine; the files hold each name, as a state dict of torch does."""
    ends = []
    for plan in ("tuned", "program"):
        torch.manual_seed(0)
        experiment = Experiment.of(Tied(), rounds=2, engine={"plan": plan, "workers": 1})
        found = run(experiment, out=tmp_path / plan, baselines=False)
        done = load(tmp_path / plan, Tied())
        assert set(done.model.state_dict()) == set(Tied().state_dict())
        assert done.model.second.weight is done.model.first.weight
        assert found.summary["final"]["loss"] < 2.3
        assert plan in found.summary["plan"]["step"]
        ends.append(done.model)
    assert torch.allclose(ends[0].first.weight, ends[1].first.weight, atol=1e-4)
    saved = load_file(tmp_path / "program" / "model.safetensors")
    assert torch.equal(saved["first.weight"], saved["second.weight"])
    assert torch.equal(saved["shift"], saved["again"])


class Clamped(nn.Linear):
    def forward(self, x):
        self.weight.data.clamp_(-10, 10)  # changes no number yet
        return super().forward(x)


class Judged(nn.Linear):
    """Keeps count while it is evaluated."""

    def __init__(self):
        super().__init__(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.seen += len(x)
        return super().forward(x)


class Running(nn.Linear):
    """A running mean of its own, kept in training: a buffer like those of batch norm."""

    def __init__(self):
        super().__init__(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return super().forward(x - self.mean)


def words():
    return nn.Sequential(nn.Embedding(9, 4, max_norm=1e6), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "shape", "name"),
    [
        (lambda: Clamped(6, 3), (6,), "weight"),
        (Judged, (6,), "seen"),
        (words, (2,), "0.weight"),
    ],
)
def test_a_forward_pass_that_writes_into_its_weights_is_refused(model, shape, name):
    with pytest.raises(ConfigError, match=rf"writes into its own '{name}' in its forward pass"):
        make_model(model(), shape, 3, seed=1, tokens=len(shape) == 1 and shape[0] == 2)


def test_buffers_may_change_in_training_and_activations_anywhere():
    body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(4, 3))
    lazy = nn.Sequential(nn.LazyLinear(4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    for model in (Running(), body, lazy):
        made = make_model(model, (6,), 3, seed=1).eval()
        assert made(torch.ones(2, 6)).shape == (2, 3)


def test_a_broken_package_keeps_nobody_from_the_rest(tmp_path, monkeypatch):
    """`list` goes on without what it brings and says so; whoever names it is told what to do."""
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedatlas.models]\nlost = broken:lost\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = (
        "model 'lost' of the package 'broken' cannot be loaded .*nowhere_to_be_found.*: update or remove that package"
    )
    with pytest.raises(ConfigError, match=said):
        find_model("lost")
    with pytest.warns(UserWarning, match=said):
        names = [row["name"] for row in catalogue.rows("models")]
    assert "mlp" in names
    assert "lost" not in names


def test_a_builder_that_is_no_function_is_listed(monkeypatch):
    monkeypatch.setitem(PLUGINS["models"], "half", functools.partial(nn.Linear, 3))
    assert "half" in [row["name"] for row in catalogue.rows("models")]


class Kept(nn.Linear):
    """A running mean that is bound anew; ``how`` says where the pass keeps it."""

    def __init__(self, how):
        super().__init__(6, 3)
        self.how, self.plain, self.past = how, 0.0, []
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("later", None)

    def forward(self, x):
        if self.training:
            mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            if self.how == "plain":
                self.plain = float(mean.sum())
            elif self.how == "past":
                self.past.append(len(x))
            else:
                setattr(self, self.how, mean)
        return super().forward(x - self.mean)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "mean",
            r"assigns its '0\.mean' anew in its forward pass, .*: write into it instead, as in self\.0\.mean\.copy_",
        ),
        ("later", r"assigns its '0\.later' anew"),
        ("plain", r"changes its attribute '0\.plain' in its forward pass, but only tensors travel"),
        ("past", r"changes its attribute '0\.past' in its forward pass"),
        ("fresh", r"changes its attribute '0\.fresh' in its forward pass"),
    ],
)
def test_what_a_forward_pass_keeps_elsewhere_is_refused(how, said):
    with pytest.raises(ConfigError, match=said):
        make_model(nn.Sequential(Kept(how)), (6,), 3, seed=1)


def test_a_shape_that_a_pass_notes_is_no_state():
    class Noting(nn.Linear):
        def forward(self, x):
            self.shape = x.shape
            return super().forward(x)

    assert make_model(Noting(6, 3), (6,), 3, seed=1).shape == (2, 6)


def test_a_network_with_nothing_to_train_is_refused():
    frozen = nn.Linear(6, 3).requires_grad_(False)
    with pytest.raises(ConfigError, match="model 'Linear' has nothing to train: all its parameters are frozen"):
        make_model(frozen, (6,), 3, seed=1)
    with pytest.raises(ConfigError, match="model 'Identity' has nothing to train: it has no parameters"):
        make_model(nn.Identity(), (3,), 3, seed=1)
    half = nn.Sequential(frozen, nn.Linear(3, 3))
    assert parameter_count(make_model(half, (6,), 3, seed=1)) == 12


class Pair(nn.Linear):
    def forward(self, x, lengths):
        return super().forward(x) / lengths


class Broken(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x)}["logit"]


def test_an_error_in_a_users_forward_pass_is_told_with_its_line():
    said = r"model 'Broken' cannot read pictures of shape \(1, 2, 3\): KeyError: 'logit' \(.*test_own_models\.py, line \d+: return "
    with pytest.raises(ConfigError, match=said) as told:
        make_model(Broken(3, 3), (1, 2, 3), 3, seed=1)
    assert "cnn2" not in str(told.value)
    with pytest.raises(ConfigError, match=r"DataParallel spreads batches over devices.* pass the network inside it"):
        make_model(nn.DataParallel(nn.Linear(6, 3)), (6,), 3, seed=1)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Pair(6, 3)

    def forward(self, x):
        return self.inner(x)


LACKS = r"TypeError: Pair\.forward\(\) missing 1 required positional argument: 'lengths'"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            Pair(6, 3),
            r"the model Pair takes \(x, lengths\) in its forward pass, but is called with one tensor, .* defaults\.",
        ),
        (nn.Bilinear(6, 6, 3), r"the model Bilinear takes \(input1, input2\) .* defaults\."),
        (nn.Sequential(Pair(6, 3)), rf"model 'Sequential' cannot read rows of shape \(6,\): {LACKS}\."),
        (
            Outer(),
            rf"model 'Outer' cannot read .*: {LACKS} \(.*test_own_models\.py, line \d+: return self\.inner\(x\)\)\.",
        ),
    ],
    ids=["own", "torch's", "a layer", "a layer of one's own"],
)
def test_two_inputs_are_refused_in_one_sentence(model, said):
    """By what it takes; where a layer inside takes two, by the exception and the user's line."""
    with pytest.raises(ConfigError) as told:
        make_model(model, (6,), 3, seed=1)
    assert re.fullmatch(said, str(told.value))


def test_a_builder_that_raises_is_told_with_its_line(monkeypatch):
    def half(shape, outputs):
        return nn.Linear(shape[0], outputs // 0)

    monkeypatch.setitem(PLUGINS["models"], "half", half)
    said = r"model 'half' cannot be built: ZeroDivisionError: .* \(.*test_own_models\.py, line \d+: return nn\.Linear"
    with pytest.raises(ConfigError, match=said):
        make_model(ModelConfig(name="half"), (5,), 2, seed=1)


def test_models_are_built_and_looked_at_with_streams_of_their_own():
    """Neither does a global stream move, nor does one that another thread moves change anything."""

    def streams():
        return torch.random.get_rng_state().tolist(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002

    before, alone = streams(), make_model(ModelConfig(name="cnn2"), (1, 28, 28), 10, seed=1).state_dict()
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    drawn = make_model(lazy, (2, 4), 3, seed=1)[1].weight
    assert streams() == before
    torch.manual_seed(derive(1, "init"))
    assert torch.equal(MODELS["cnn2"]((1, 28, 28), 10).head.weight, alone["head.weight"])

    stop = threading.Event()

    def draw():
        while not stop.is_set():
            torch.rand(3), random.random(), np.random.rand(3)  # noqa: NPY002, S311

    other = threading.Thread(target=draw)
    other.start()
    try:
        for _ in range(5):
            again = make_model(ModelConfig(name="cnn2"), (1, 28, 28), 10, seed=1).state_dict()
            assert all(torch.equal(x, again[name]) for name, x in alone.items())
            assert torch.equal(make_model(lazy, (2, 4), 3, seed=1)[1].weight, drawn)
    finally:
        stop.set()
        other.join()
    assert torch.equal(make_model(lazy, (2, 4), 3, seed=1)[1].weight, drawn)


def test_an_operator_that_takes_no_generator_is_refused_where_a_model_is_built(monkeypatch):
    def dropped(shape, outputs):
        torch.native_dropout(torch.ones(3), 0.5, True)
        return nn.Linear(shape[0], outputs)

    monkeypatch.setitem(PLUGINS["models"], "dropped", dropped)
    with pytest.raises(ConfigError, match="draws by torch's 'native_dropout', which takes no generator"):
        make_model(ModelConfig(name="dropped"), (5,), 2, seed=1)


def test_runs_in_threads_give_the_bits_of_a_run_alone(tmp_path):
    def one(name):
        run(Experiment.of(rounds=2, seed=3, engine={"workers": 1}), out=tmp_path / name, baselines=False)

    one("alone")
    threads = [threading.Thread(target=one, args=(f"{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = (tmp_path / "alone" / "model.safetensors").read_bytes()
    assert [(tmp_path / f"{number}" / "model.safetensors").read_bytes() == expected for number in range(3)] == [
        True
    ] * 3
