"""Which modules are chains of layers of units, how they are read, and modules whose widths change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.errors import ConfigError
from fedatlas.layers import Axis, Layer, LayerTensor, from_rows, parsed, picked, plain, put, rows, take, widened
from fedatlas.models import MODELS, adopt_dropout, init_model
from fedatlas.models.chain import ElasticLSTM, elastic, find_chain, resized
from layerwise import NETWORKS, SHAPES

IMAGE = torch.zeros((2, 1, 8, 8))


class Plain(nn.Module):
    """Runs what it is given, in any way."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def dense(*widths: int) -> dict[str, nn.Module]:
    return {"abcd"[i]: nn.Linear(*pair) for i, pair in enumerate(pairwise(widths))}


def recurrent(layer: nn.Module, width: int) -> nn.Module:
    return Plain(lambda m, x: m.b(m.a(x[:, None])[0][:, -1]), a=layer, b=nn.Linear(width, 3))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 3))


def tied() -> nn.Module:
    made = Plain(lambda m, x: m.c(m.b(m.a(x).tanh()).tanh()), **dense(6, 6, 6, 3))
    made.b.weight = made.a.weight  # type: ignore[assignment, union-attr]
    return made


def unfrozen() -> nn.Module:
    made = Plain(lambda m, x: m.b(m.a(x).relu()), **dense(6, 5, 3))
    made.a.weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    return made


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(6, 5), nn.Linear(5, 3), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * self.scale)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a skip connection": (lambda: Plain(lambda m, x: m.c(m.a(x).relu() + m.b(m.a(x).relu()).relu()), **dense(6, 6, 6, 3)), "2 times"),
    "a residual sum": (lambda: Plain(lambda m, x: m.c(x + m.b(m.a(x).relu())), **dense(6, 5, 6, 3)), "changes its outputs"),
    "two branches": (lambda: Plain(lambda m, x: m.c(m.a(x).relu() + m.b(x).relu()), **dense(6, 6, 6, 3)), "changes its outputs"),
    "units that compete": (lambda: Plain(lambda m, x: m.b(m.a(x).softmax(1)), **dense(6, 5, 3)), "changes its outputs"),
    "units treated unlike": (lambda: Plain(lambda m, x: m.b(m.a(x) * torch.arange(5.0)), **dense(6, 5, 3)), "changes its outputs"),
    "a layer left out": (lambda: Plain(lambda m, x: m.b(m.a(x)), **dense(6, 5, 3, 3)), "'c' 0 times"),
    "batch norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), "'1' (BatchNorm1d)"),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), "'1' (LayerNorm)"),
    "dropout": (lambda: adopt_dropout(nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))), "'1' (Dropout)"),
    "grouped convolutions": (grouped, "grouped"),
    "a GRU": (lambda: recurrent(nn.GRU(6, 5, batch_first=True), 5), "'a' (GRU)"),
    "both directions": (lambda: recurrent(nn.LSTM(6, 5, bidirectional=True, batch_first=True), 10), "'a' (LSTM)"),
    "tied weights": (tied, "shares a tensor"),
    "weights that are not trained": (unfrozen, "frozen weights"),
    "a parameter of its own": (Scaled, "extra tensors"),
    "an end without a Linear": (lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6), nn.Flatten()), "does not end"),
    "no weights": (nn.Flatten, "does not end"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_chain(what: str) -> None:
    """One sentence that says which layer it is, or what happens."""
    make, words = REFUSED[what]
    with pytest.raises(ConfigError, match=r"^the model [^\n]*without skip connections[^\n]*\.$") as error:
        find_chain(elastic(make()), torch.zeros((2, 6)))
    assert words in str(error.value)


@pytest.mark.parametrize(("name", "fits"), [("resnet1", False), ("emnist_cnn", False), ("cnn1", True), ("mlp2", True)])
def test_models_of_the_registry(name: str, fits: bool) -> None:
    module = adopt_dropout(init_model(MODELS[name], (1, 28, 28), 10, 1))
    if fits:
        assert find_chain(module, torch.zeros((2, 1, 28, 28)))[-1].units == 10
    else:
        with pytest.raises(ConfigError):
            find_chain(module, torch.zeros((2, 1, 28, 28)))


def test_how_layers_are_read() -> None:
    """Channels lie in blocks of pixels, steps one after another, an LSTM's gates one after another."""

    def chain(name: str) -> tuple[Layer, ...]:
        sample = torch.zeros((2, *SHAPES[name]))
        return find_chain(elastic(NETWORKS[name]()), sample.long() if name in {"texts", "steps"} else sample)

    pictures = chain("pictures")
    assert [layer.units for layer in pictures] == [5, 6, 8, 3]
    assert pictures[1].parts[0] == LayerTensor("net.3.weight", Axis(0), Axis(1))
    assert pictures[2].parts[0].inputs == Axis(1, 1, 4)
    assert chain("steps")[1].parts[0].inputs == Axis(1, 5, 1)
    texts = chain("texts")
    assert [layer.name for layer in texts] == ["embedding", "lstm.0", "lstm.1", "head"]
    assert texts[0].parts == (LayerTensor("embedding.weight", Axis(1)),)
    assert texts[2].parts[1] == LayerTensor("lstm.weight_hh_l1", Axis(0, 4), None, Axis(1))
    assert parsed(plain(texts)) == texts


@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 5), st.integers(0, 1), st.integers(0, 99))
def test_units_can_be_taken_and_put_back(gates: int, block: int, units: int, dim: int, seed: int) -> None:
    """Taken out of a wider tensor they come back; rows of units are the tensor in another order."""
    axis = Axis(dim, gates, block)
    shape = [3, 3]
    shape[dim] = gates * units * block
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    index = torch.randperm(units + 2, generator=torch.Generator().manual_seed(seed))[:units]
    wide = put(x, axis, index, units + 2)
    assert torch.equal(take(wide, axis, index), x)
    assert float(wide.abs().sum()) == pytest.approx(float(x.abs().sum()), rel=1e-5)
    if block == 1:
        assert torch.equal(from_rows(rows(x, axis), axis, x), x)
        assert torch.equal(rows(take(x, axis, torch.arange(units).flip(0)), axis), rows(x, axis).flip(0))


def test_inputs_are_renamed_and_filled_with_zeros() -> None:
    """Unit 0 of the layer before is now 2, unit 1 is now 0; nobody knows unit 1."""
    layer = Layer("b", 1, (LayerTensor("w", Axis(0), Axis(1)), LayerTensor("c", Axis(0))))
    w = {"w": torch.tensor([[5.0, 7.0]]), "c": torch.tensor([1.0])}
    found = widened(w, layer, torch.tensor([2, 0]), 3)
    assert found["w"].tolist() == [[7.0, 0.0, 5.0]]
    assert found["c"] is w["c"]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_an_elastic_lstm_is_an_lstm(batch_first: bool, bias: bool) -> None:
    """The same outputs, last states and names; nothing is drawn."""
    torch.manual_seed(3)
    before = nn.LSTM(4, 6, num_layers=2, batch_first=batch_first, bias=bias)
    x, state = torch.randn(5, 5, 4), torch.random.get_rng_state()
    after = elastic(nn.Sequential(before))[0]
    assert isinstance(after, ElasticLSTM)
    assert torch.equal(torch.random.get_rng_state(), state)
    (y, (h, c)), (z, (g, d)) = before(x), after(x)
    assert float((y - z).detach().abs().max()) < 1e-6
    assert float((h[-1] - g[-1]).detach().abs().max()) < 1e-6
    assert float((c[-1] - d[-1]).detach().abs().max()) < 1e-6
    assert list(after.state_dict()) == list(before.state_dict())
    with pytest.raises(ConfigError, match="zero states"):
        after(x, (h, c))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_takes_the_widths_of_a_state(name: str) -> None:
    """Each layer its own width: the resized module is the function of the wide tensors, and says its new widths."""
    sample = torch.zeros((2, *SHAPES[name]))
    sample = sample.long() if name in {"texts", "steps"} else sample + 0.5
    module = elastic(NETWORKS[name]())
    chain = find_chain(module, sample)
    index = {layer.name: torch.arange(layer.units + 2 + i) % layer.units for i, layer in enumerate(chain[:-1])}
    wide = picked(dict(module.state_dict()), chain, index)
    other = resized(NETWORKS[name](), wide)
    other.load_state_dict(wide)
    there = functional_call(module, dict(wide), (sample,))
    assert float((other(sample) - there).detach().abs().max()) < 1e-6
    assert find_chain(other, sample)[0].units == chain[0].units + 2
