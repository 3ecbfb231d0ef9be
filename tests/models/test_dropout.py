import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedatlas.errors import ConfigError
from fedatlas.models import Dropout, adopt_dropout, draw_masks, dropout_shapes, init_model, make_model
from fedatlas.models.cnn import emnist_cnn
from fedatlas.models.draws import refuse_hidden_draws
from fedatlas.models.dropout import evaluating
from fedatlas.rng import torch_stream


def test_training_multiplies_by_the_mask_and_evaluation_does_not():
    layer, x = Dropout(0.5), torch.tensor([[1.0, 2.0, 3.0]])
    mask = torch.tensor([[0.0, 2.0, 2.0]])
    assert torch.equal(functional_call(layer.train(), {"mask": mask}, (x,)), torch.tensor([[0.0, 4.0, 6.0]]))
    assert torch.equal(functional_call(layer.eval(), {"mask": mask}, (x,)), x)
    assert layer.state_dict() == {}


def test_training_without_a_mask_fails_instead_of_not_dropping():
    with pytest.raises(RuntimeError):
        Dropout(0.5).train()(torch.ones(2, 3))


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_masks_are_bernoulli_scaled_to_mean_one(p):
    model = nn.Sequential(Dropout(p))
    mask = draw_masks(model, {"0.mask": (100,)}, 1000, torch_stream(1, "dropout"))["0.mask"]
    kept = 1 - p
    assert all(value == pytest.approx(1 / kept) for value in mask[mask > 0].unique().tolist())
    # share kept of 100,000 draws: sd sqrt(p kept / 1e5) <= 0.0016
    assert abs(float((mask > 0).double().mean()) - kept) < 0.008


def test_masks_depend_on_the_stream_alone_and_not_on_the_precision():
    model = init_model(emnist_cnn, (1, 28, 28), 62, 1)
    shapes = dropout_shapes(model, torch.zeros(2, 1, 28, 28))
    assert shapes == {"body.5.mask": (64, 12, 12), "body.9.mask": (128,)}
    torch.rand(5)
    a = draw_masks(model, shapes, 4, torch_stream(1, "dropout", 3, 0, 0, 7))
    b = draw_masks(model, shapes, 4, torch_stream(1, "dropout", 3, 0, 0, 7), torch.float64)
    c = draw_masks(model, shapes, 4, torch_stream(1, "dropout", 3, 0, 0, 8))
    assert a["body.5.mask"].shape == (4, 64, 12, 12)
    for name, mask in a.items():
        assert torch.equal(mask > 0, b[name] > 0)
        assert b[name].dtype == torch.float64
        assert not torch.equal(mask, c[name])


def test_every_dropout_of_a_users_module_is_replaced():
    shared = nn.Dropout(0.1)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 1), nn.Dropout2d(0.2)), nn.Flatten(), shared, nn.Linear(12, 12), shared
    )
    adopt_dropout(model)
    assert not [m for m in model.modules() if isinstance(m, (nn.Dropout, nn.Dropout2d))]
    # a channel-wise mask is spread over the picture; the layer used twice became two
    shapes = dropout_shapes(model, torch.zeros(2, 1, 2, 2))
    assert shapes == {"0.1.mask": (3, 1, 1), "2.mask": (12,), "4.mask": (12,)}
    masks = draw_masks(model, shapes, 2, torch_stream(1, "dropout"))
    assert functional_call(model.train(), masks, (torch.ones(2, 1, 2, 2),)).shape == (2, 12)
    assert isinstance(adopt_dropout(nn.Dropout(0.3)), Dropout)


def test_finding_shapes_leaves_the_modes_as_they_were():
    model = nn.Sequential(nn.Linear(2, 2), Dropout(0.5)).train()
    model[0].eval()
    dropout_shapes(model, torch.zeros(1, 2))
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    with evaluating(model):
        assert not model[1].training
    assert model[1].training


def test_one_layer_used_twice_in_a_pass_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.layer = nn.Dropout(0.5), nn.Linear(4, 2)

        def forward(self, x):
            return self.drop(self.layer(self.drop(x)))

    with pytest.raises(ConfigError, match="dropout layer 'drop' is used more than once"):
        make_model(Twice(), (4,), 2, seed=1)


def test_a_module_that_draws_by_itself_is_refused():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(F.dropout(x, 0.5, training=self.training))

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.layer = nn.LSTM(1, 3, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(self.lstm(x.unsqueeze(2))[0][:, -1])

    class Attentive(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(self.encoder(x.unsqueeze(1))[:, 0])

    class Python(nn.Linear):
        def forward(self, x):
            return super().forward(x if random.random() < 0.999 else 2 * x)  # noqa: S311

    recurrent = (
        r" in its layer 'lstm' \(LSTM\): build it with dropout = 0 \(it has 0\.2\), and where units should drop "
    )
    attentive = (
        r" in its layer 'encoder\.self_attn' \(MultiheadAttention\): build it with dropout = 0 \(it has 0\.1\), .*"
    )
    for module, where in (
        (Functional(), ": "),
        (Recurrent(), recurrent),
        (Attentive(), attentive),
        (Python(4, 2), ": "),
    ):
        with pytest.raises(
            ConfigError, match=rf"draws random numbers inside its forward pass{where}use nn\.Dropout layers"
        ):
            make_model(module, (4,), 2, seed=1)


def test_a_layer_that_may_drop_and_does_not_is_taken():
    """Fused attention is marked as random by torch, whether or not anything is dropped."""
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    assert make_model(nn.Sequential(nn.Unflatten(1, (1, 4)), encoder, nn.Flatten(), nn.Linear(4, 2)), (4,), 2, seed=1)


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: float(torch.rand(()))])
def test_a_draw_of_python_or_numpy_is_noticed_too(draw):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x) * (1 + draw()) if self.training else self.layer(x)

    with pytest.raises(ConfigError, match="draws random numbers inside its forward pass"):
        make_model(Noisy(), (4,), 2, seed=1)


def test_the_search_for_draws_leaves_the_module_as_it_was():
    model = adopt_dropout(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))).eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    refuse_hidden_draws(model, torch.rand(2, 3))
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert not any(m.training for m in model.modules())


def test_a_probability_outside_its_range_is_refused():
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Dropout(1.5)
