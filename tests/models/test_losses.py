import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedatlas.errors import ConfigError, DataError
from fedatlas.models import LOSSES, LossConfig, make_loss
from fedatlas.rng import torch_stream

OVA = LossConfig(name="multiclass_hinge", form="ova")
LOG = math.log


def f64(*values):
    return tensor(values, dtype=torch.float64)


def sample(loss, n=5, seed=1):
    """Outputs (float64) and labels of the loss's kind, away from its kinks."""
    stream = torch_stream(seed, "test")
    if loss.task == "numbers":
        return torch.rand((n, 1), generator=stream, dtype=torch.float64), torch.rand(n, generator=stream).double()
    width = loss.width()
    outputs = torch.randn((n, width), generator=stream, dtype=torch.float64)
    return outputs, torch.randint(0, loss.classes, (n,), generator=stream)


def every():
    kinds = [make_loss(name, "numbers") for name in ("mse", "msle", "mae")]
    kinds += [make_loss(name, "classes", 2) for name in ("bce", "hinge", "squared_hinge")]
    return kinds + [make_loss(name, "classes", 4) for name in ("cross_entropy", "multiclass_hinge", "kl", OVA)]


def test_every_loss_of_the_specification_is_registered():
    assert sorted(LOSSES) == sorted(
        ["mse", "msle", "mae", "bce", "hinge", "squared_hinge", "cross_entropy", "multiclass_hinge", "kl"]  # L1-L9
    )
    assert all(loss.name == name for name, loss in LOSSES.items())


@pytest.mark.parametrize(
    ("loss", "outputs", "target", "expected"),
    [  # worked by hand (L1 to L9)
        ("mse", [1.0], 3.0, 4.0),
        ("mae", [1.0], 3.0, 2.0),
        ("msle", [1.0], 3.0, LOG(2) ** 2),  # log 4 - log 2
        ("hinge", [0.5], 1, 0.5),
        ("squared_hinge", [0.5], 1, 0.25),
        ("hinge", [0.5], 0, 1.5),  # the label 0 is -1: 1 + 0.5
        ("hinge", [2.0], 1, 0.0),
        ("bce", [0.0], 1, LOG(2)),
        ("bce", [LOG(3)], 0, LOG(4)),  # p = 3/4: -log(1/4)
        ("cross_entropy", [LOG(0.5), LOG(0.25), LOG(0.25)], 0, LOG(2)),
        ("kl", [LOG(0.5), LOG(0.25), LOG(0.25)], 0, LOG(2)),
        ("multiclass_hinge", [2.0, 1.0, 0.0], 1, 2.0),  # 1 + 2 - 1
        (OVA, [2.0, 1.0, 0.0], 1, 4.0),  # (1+2) + (1-1) + (1+0)
        ("multiclass_hinge", [2.0, 1.0, 0.0], 0, 0.0),  # 1 + 1 - 2
    ],
)
def test_hand_values(loss, outputs, target, expected):
    name = loss if isinstance(loss, str) else loss.name
    task = LOSSES[name].tasks[0]
    made = make_loss(loss, task, 2 if LOSSES[name].binary else len(outputs))
    outputs, target = f64(outputs), tensor([target])
    assert float(made.elements(outputs, target)) == pytest.approx(expected, abs=1e-12)
    assert float(made.mean(outputs, target)) == pytest.approx(expected, abs=1e-12)


def test_kl_of_probability_vectors_by_hand():
    # y = (1/2, 1/2, 0), p = (1/2, 1/4, 1/4): 1/2 log 1 + 1/2 log 2 + 0 log 0
    y, logits = f64([0.5, 0.5, 0.0]), f64([LOG(0.5), LOG(0.25), LOG(0.25)])
    assert float(make_loss("kl", "classes", 3).mean(logits, y)) == pytest.approx(LOG(2) / 2, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_kl_is_cross_entropy_less_the_entropy_of_the_label(seed):
    stream = torch_stream(seed, "test")
    logits = torch.randn((6, 4), generator=stream, dtype=torch.float64)
    y = torch.rand((6, 4), generator=stream, dtype=torch.float64)
    y[0, 1] = 0.0
    y /= y.sum(1, keepdim=True)
    entropy = -torch.xlogy(y, y).sum(1)
    kl, ce = (make_loss(name, "classes", 4).elements(logits, y) for name in ("kl", "cross_entropy"))
    assert torch.allclose(kl, ce - entropy, atol=1e-12)
    assert bool((kl >= -1e-12).all())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_multiclass_hinge_equals_its_definition(seed):
    stream = torch_stream(seed, "test")
    s = torch.randn((5, 4), generator=stream, dtype=torch.float64)
    y = torch.randint(0, 4, (5,), generator=stream)
    crammer, ova = [], []
    for row, t in zip(s.tolist(), y.tolist(), strict=True):
        crammer.append(max(0.0, 1 + max(row[c] for c in range(4) if c != t) - row[t]))
        ova.append(sum(max(0.0, 1 - row[c]) if c == t else max(0.0, 1 + row[c]) for c in range(4)))
    assert torch.allclose(make_loss("multiclass_hinge", "classes", 4).elements(s, y), f64(*crammer))
    assert torch.allclose(make_loss(OVA, "classes", 4).elements(s, y), f64(*ova))


@pytest.mark.parametrize("loss", every(), ids=lambda loss: loss.rows.__name__)
def test_gradients_match_finite_differences(loss):
    outputs, targets = sample(loss)
    outputs.requires_grad_()
    weights = f64(1, 2, 0, 0.5, 3)
    assert torch.autograd.gradcheck(lambda x: loss.mean(x, targets), outputs)
    assert torch.autograd.gradcheck(lambda x: loss.mean(x, targets, weights), outputs)


def test_mean_absolute_error_has_slope_zero_at_zero():
    x = f64(1.0, 2.0).requires_grad_()
    make_loss("mae", "numbers").mean(x, f64(1.0, 0.0)).backward()
    assert x.grad.tolist() == [0.0, 0.5]


@pytest.mark.parametrize("loss", every(), ids=lambda loss: loss.rows.__name__)
def test_weighted_means(loss):
    outputs, targets = sample(loss)
    each, weights = loss.elements(outputs, targets), f64(1, 2, 0, 0.5, 3)
    assert each.shape == (5,)
    assert torch.allclose(loss.mean(outputs, targets), each.mean())
    assert torch.allclose(loss.mean(outputs, targets, weights), (each * weights).sum() / 6.5)
    # a whole number as weight is that many copies; a weight of 0 is a row that is not there
    twice = tensor([0, 1, 1, 4])
    counted = f64(1, 2, 0, 0, 1)
    assert torch.allclose(loss.mean(outputs, targets, counted), loss.mean(outputs[twice], targets[twice]))
    assert float(loss.mean(outputs, targets, torch.zeros(5))) == 0.0


@pytest.mark.parametrize("loss", every(), ids=lambda loss: loss.rows.__name__)
def test_a_traced_loss_bakes_no_value_in(loss):
    def step(outputs, targets, weights):
        return torch.func.grad_and_value(lambda x: loss.mean(x, targets) + loss.mean(x, targets, weights))(outputs)

    outputs, targets = sample(loss)
    weights = f64(1, 2, 0, 0.5, 3)
    traced = make_fx(step)(outputs, targets, weights)
    outputs, targets = sample(loss, seed=2)
    for got, want in zip(traced(outputs, targets, 5 - weights), step(outputs, targets, 5 - weights), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("loss", every(), ids=lambda loss: loss.rows.__name__)
def test_clients_stacked_by_vmap_get_their_own_losses(loss):
    a, b = sample(loss, seed=1), sample(loss, seed=2)
    stacked = torch.vmap(loss.mean)(torch.stack([a[0], b[0]]), torch.stack([a[1], b[1]]))
    assert torch.allclose(stacked, torch.stack([loss.mean(*a), loss.mean(*b)]))


def test_one_output_does_not_spread_over_the_labels():
    # (n, 1) against (n,) is a row each, not n x n
    outputs, targets = f64([1.0], [2.0]), f64(1.0, 4.0)
    assert float(make_loss("mse", "numbers").mean(outputs, targets)) == 2.0
    assert float(make_loss("mse", "numbers").mean(outputs.squeeze(1), targets)) == 2.0
    # several outputs: the mean over them, then over rows: ((1+0)/2 + (4+0)/2) / 2
    assert float(make_loss("mse", "numbers").mean(f64([0, 0], [2, 0]), f64([1, 0], [0, 0]))) == 1.25


def test_extreme_logits_stay_finite():
    logits = tensor([[1e4, -1e4, 0.0]])
    for name in ("cross_entropy", "kl"):
        assert float(make_loss(name, "classes", 3).mean(logits, tensor([1]))) == pytest.approx(2e4)
    assert float(make_loss("bce", "classes", 2).mean(tensor([[-1e4]]), tensor([1]))) == pytest.approx(1e4)


# --- tokens -----------------------------------------------------------------------------------------------------


def test_token_loss_is_the_mean_over_counted_tokens():
    loss = make_loss("auto", "tokens", 5, ignore=0)
    stream = torch_stream(1, "test")
    outputs = torch.randn((2, 3, 5), generator=stream, dtype=torch.float64)
    targets = tensor([[1, 2, 0], [4, 0, 0]])  # three tokens count
    log_p = outputs.log_softmax(2)
    a, b, c = -log_p[0, 0, 1], -log_p[0, 1, 2], -log_p[1, 0, 4]
    assert torch.allclose(loss.mean(outputs, targets), (a + b + c) / 3)
    assert torch.allclose(loss.elements(outputs, targets).sum(1), torch.stack([a + b, c]))
    assert torch.allclose(loss.mean(outputs, targets, f64(1, 3)), (a + b + 3 * c) / 5)
    assert torch.allclose(
        loss.mean(outputs, targets), F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0)
    )
    assert torch.equal(loss.elements(outputs, targets) == 0, targets == 0)


def test_ignored_tokens_have_no_gradient_and_may_fill_a_batch():
    loss = make_loss("cross_entropy", "tokens", 4)
    outputs = torch.randn((2, 3, 4), generator=torch_stream(1, "test")).requires_grad_()
    targets = tensor([[1, -100, 2], [-100, -100, -100]])
    loss.mean(outputs, targets).backward()
    assert outputs.grad[0, 0].any()
    assert not outputs.grad[0, 1].any()
    assert not outputs.grad[1].any()
    assert not loss.elements(outputs, targets)[1].any()
    assert loss.mean(outputs, torch.full((2, 3), -100)) == 0


# --- refusals ---------------------------------------------------------------------------------------------------


def test_auto_follows_the_task():
    assert make_loss("auto", "classes", 3).name == "cross_entropy"
    assert make_loss("auto", "tokens", 3).name == "cross_entropy"
    assert make_loss("auto", "numbers").name == "mse"
    assert [make_loss(n, "classes", 2).width() for n in ("auto", "bce", "hinge")] == [2, 1, 1]
    assert make_loss("mae", "numbers").width() == 1


@pytest.mark.parametrize(
    ("loss", "task", "classes", "said"),
    [
        ("cross_entrpy", "classes", 3, "did you mean 'cross_entropy'"),
        ("mse", "classes", 3, "cannot train on classes: use one of bce, cross_entropy"),
        ("cross_entropy", "numbers", 0, "cannot train on numbers: use one of mae, mse, msle"),
        ("bce", "classes", 10, "needs two classes, but these data have 10"),
        ("kl", "tokens", 10, "cannot train on tokens"),
        (LossConfig(name="hinge", form="ova"), "classes", 2, "form belongs to 'multiclass_hinge'"),
    ],
)
def test_a_loss_that_cannot_read_the_target_is_refused(loss, task, classes, said):
    with pytest.raises(ConfigError, match=said):
        make_loss(loss, task, classes)


@pytest.mark.parametrize(
    ("loss", "targets", "said"),
    [
        (make_loss("cross_entropy", "classes", 3), tensor([0, 2, 3]), "from 0 to 2, .* row 2 has 3"),
        (make_loss("cross_entropy", "classes", 3), tensor([0, -1, 2]), "row 1 has -1"),
        (make_loss("cross_entropy", "tokens", 3), tensor([[0, -100], [3, 0]]), "row 1 has 3"),
        (make_loss("multiclass_hinge", "classes", 3), f64(0, 1, 2), "needs class numbers; these labels are float64"),
        (make_loss("kl", "classes", 2), f64([0.5, 0.5], [0.5, 0.6]), "row 1 is not a probability vector"),
        (make_loss("kl", "classes", 2), f64([1.5, -0.5]), "row 0 is not a probability vector"),
        (make_loss("bce", "classes", 2), tensor([-1, 1]), r"needs the labels 0 and 1, but these data hold \[-1, 1\]"),
        (make_loss("hinge", "classes", 2), tensor([-1, 0, 1]), "0 and 1 or -1 and 1"),
        (make_loss("mse", "numbers"), f64(1, float("nan")), "needs finite numbers; the label of row 1 is nan"),
        (make_loss("msle", "numbers"), f64(0, -1), "numbers above -1; the label of row 1 is -1"),
    ],
)
def test_labels_outside_the_domain_are_refused(loss, targets, said):
    with pytest.raises(DataError, match=said):
        loss.check(targets)


def test_labels_inside_the_domain_pass():
    make_loss("cross_entropy", "classes", 3).check(tensor([0, 1, 2]))
    make_loss("cross_entropy", "classes", 2).check(f64([0.25, 0.75]))
    make_loss("cross_entropy", "tokens", 3).check(tensor([[0, -100]]))
    make_loss("hinge", "classes", 2).check(tensor([-1, 1]))
    make_loss("hinge", "classes", 2).check(tensor([0, 1]))
    make_loss("msle", "numbers").check(f64(-0.5, 2))
