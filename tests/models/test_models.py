import copy
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call

from fedatlas.errors import ConfigError
from fedatlas.models import (
    MODELS,
    ModelConfig,
    describe_models,
    draw_masks,
    dropout_shapes,
    flops,
    init_model,
    load_initial,
    make_model,
    parameter_count,
)
from fedatlas.models.registry import PAPER_SIZES
from fedatlas.rng import torch_stream

DIGIT, COLOUR = (1, 28, 28), (3, 32, 32)
LSTMS = {"shakespeare_lstm", "stackoverflow_lstm"}
TRACEABLE = sorted(MODELS.keys() - LSTMS)


def build(name, shape=None, outputs=None, seed=1, **keys):
    paper_shape, paper_outputs = PAPER_SIZES.get(name, ((1, 8, 8), 10))
    return init_model(MODELS[name], shape or paper_shape, outputs or paper_outputs, seed, **keys)


def rows(name, n=3, shape=None):
    shape = shape or PAPER_SIZES.get(name, ((1, 8, 8), 10))[0]
    stream = torch_stream(7, "test")
    if name in LSTMS:
        return torch.randint(1, 80, (n, *shape), generator=stream)
    return torch.rand((n, *shape), generator=stream)


def masks_for(model, x):
    return draw_masks(model, dropout_shapes(model, x), len(x), torch_stream(3, "dropout"))


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "keys", "count"),
    [  # the papers' numbers of parameters (M1 to M12)
        ("mlp1", DIGIT, 10, {}, 159_010),
        ("mlp2", DIGIT, 10, {}, 199_210),
        ("cnn1", DIGIT, 10, {}, 26_450),
        ("cnn1", DIGIT, 10, {"padding": "valid"}, 9_950),
        ("cnn2", DIGIT, 10, {}, 1_663_370),
        ("cnn2", DIGIT, 10, {"padding": "valid"}, 582_026),
        ("resnet1", DIGIT, 10, {}, 29_660),
        ("resnet2", DIGIT, 10, {}, 1_793_642),
        ("lenet5", COLOUR, 10, {}, 797_962),
        ("lenet5", COLOUR, 100, {}, 815_332),
        ("lenet_sigmoid", (1, 16, 16), 10, {}, 9_466),  # 312 + 2 x 3,612 + 1,930
        ("emnist_cnn", DIGIT, 62, {}, 1_206_590),
        ("emnist_cnn", DIGIT, 10, {}, 1_199_882),
        ("emnist_cnn", DIGIT, 62, {"table_literal": True}, 1_206_590),
        ("shakespeare_lstm", (80,), 80, {}, 133_520),
        ("stackoverflow_lstm", (20,), 10_004, {}, 4_053_428),
        ("har4", (561,), 6, {}, 384_128),
        ("har3", (561,), 6, {}, 245_382),
        # other data: 64*200+200 + 200*10+10
        ("mlp1", (64,), 10, {}, 15_010),
        # conv 3*25*32+32, conv 32*25*64+64, fc 64*8*8*512+512, fc 512*10+10
        ("cnn2", COLOUR, 10, {}, 2_432 + 51_264 + 2_097_664 + 5_130),
        # 30*64+64 + 64*32+32 + 32*2+2
        ("mlp", (30,), 2, {"hidden": (64, 32)}, 1_984 + 2_080 + 66),
        ("logistic", (30,), 2, {}, 62),
        # MOON's head on HAR-4, H12: 312 -> 312 -> 256, and the last layer 256 -> 6 instead of 312 -> 6
        ("har4", (561,), 6, {"projection": 256}, 384_128 + 312 * 312 + 312 + 312 * 256 + 256 + (256 - 312) * 6),
    ],
)
def test_parameter_counts(name, shape, outputs, keys, count):
    with torch.device("meta"):
        assert parameter_count(MODELS[name](shape, outputs, **keys)) == count


@pytest.mark.parametrize("name", sorted(MODELS))
def test_output_is_the_head_of_the_features(name):
    model, x = build(name).eval(), rows(name)
    with torch.no_grad():
        y, z = model(x), model.features(x)
    outputs = PAPER_SIZES.get(name, ((), 10))[1]
    assert y.shape == ((3, 20, outputs) if name == "stackoverflow_lstm" else (3, outputs))
    assert torch.equal(y, model.head(z))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_gradient_reaches_every_parameter(name):
    model, x = build(name).train(), rows(name, n=4)
    y = functional_call(model, masks_for(model, x), (x,))
    y.square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


VARIANTS = [{}, {"norm": "group"}, {"norm": "batch", "projection": 16}]


@pytest.mark.parametrize(
    ("name", "keys"), [(n, k) for n in TRACEABLE for k in (VARIANTS if n != "logistic" else [{}])], ids=str
)
def test_symbolic_trace_gives_the_same_outputs_with_masks_as_inputs(name, keys):
    model, x = build(name, **keys).train(), rows(name, n=4)
    traced = torch.fx.symbolic_trace(model)
    for seed in (1, 2):  # twice, so that nothing of the first call can be baked in
        masks = draw_masks(model, dropout_shapes(model, x), 4, torch_stream(seed, "dropout"))
        state = {**{n: p * seed for n, p in model.named_parameters()}, **masks}
        buffers = {n: b.clone() for n, b in model.named_buffers() if n not in masks}
        want = functional_call(model, {**state, **copy.deepcopy(buffers)}, (x,))
        assert torch.equal(functional_call(traced, {**state, **copy.deepcopy(buffers)}, (x,)), want)


@pytest.mark.parametrize("name", ["cnn1", "cnn2", "lenet5"])
def test_relu_stands_right_before_its_pool(name):
    # What the fast engine's forward rewrite looks for.
    graph = torch.fx.symbolic_trace(build(name)).graph
    kinds = [type(build(name).get_submodule(n.target)).__name__ for n in graph.nodes if n.op == "call_module"]
    assert kinds[:6] == ["Conv2d", "ReLU", "MaxPool2d"] * 2


def test_residual_block_by_hand():
    model = build("resnet1", (1, 4, 4), 2)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.body[0].shortcut.weight.fill_(1.0)  # channel copies of the picture pass through the shortcut alone
        model.body[0].shortcut.bias.fill_(-0.5)
        x = torch.arange(16.0).reshape(1, 1, 4, 4) - 8
        assert torch.equal(model.body[0](x), (x - 0.5).clamp_min(0).expand(1, 5, 4, 4))


# --- initialisation ---------------------------------------------------------------------------------------------


def test_initialisation_depends_on_the_seed_alone_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    a = build("cnn1", seed=1).state_dict()
    torch.rand(3)
    b = build("cnn1", seed=1).state_dict()
    c = build("cnn1", seed=2).state_dict()
    torch.random.set_rng_state(before)
    describe_models()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not any(torch.equal(a[n], c[n]) for n in a)


def test_make_model_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    make_model(ModelConfig(), (64,), 10, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_initialisation_is_the_frameworks_default():
    # nn.Linear: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases; sd = bound / sqrt(3)
    weight = build("mlp1").body[1].weight.detach()
    bound = 1 / math.sqrt(784)
    assert weight.abs().max() <= bound
    assert abs(float(weight.std()) * math.sqrt(3) / bound - 1) < 0.01  # 156,800 draws: sd of this ratio 0.001


def test_precision_and_projection_do_not_change_the_start():
    plain = make_model(ModelConfig(name="mlp"), (64,), 10, seed=3)
    double = make_model(ModelConfig(name="mlp"), (64,), 10, seed=3, dtype=torch.float64)
    headed = make_model(ModelConfig(name="mlp", projection=16), (64,), 10, seed=3)
    for n, w in plain.state_dict().items():
        assert double.state_dict()[n].dtype == torch.float64
        assert torch.equal(w.double(), double.state_dict()[n])
    assert torch.equal(plain.body[1].weight, headed.body[1].weight)
    assert headed.features(torch.zeros(2, 64)).shape == (2, 16)
    assert (plain.projection, headed.projection) == (0, 16)


def test_state_survives_a_file(tmp_path):
    source = build("resnet1", norm="batch", seed=1).train()
    source(rows("resnet1"))  # moves the running statistics and the counter
    save_file({n: t.contiguous() for n, t in source.state_dict().items()}, tmp_path / "m.safetensors")
    config = ModelConfig(name="resnet1", norm="batch", init=str(tmp_path / "m.safetensors"))
    loaded = make_model(config, DIGIT, 10, seed=2).state_dict()
    assert list(loaded) == list(source.state_dict())
    assert all(torch.equal(loaded[n], t) for n, t in source.state_dict().items())
    assert int(loaded["body.0.residual.1.num_batches_tracked"]) == 1


def test_initial_file_of_another_model_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(build("mlp", (64,), 10).state_dict(), path)
    with pytest.raises(ConfigError, match=r"it lacks body\.3\.bias"):
        load_initial(build("mlp", (64,), 10, hidden=(64, 32)), path)
    with pytest.raises(ConfigError, match=r"it also holds body\.1\.bias"):
        load_initial(build("logistic", (64,), 10), path)
    with pytest.raises(ConfigError, match=r"body\.1\.weight has shape \(64, 64\) in the file, \(64, 30\) in the model"):
        load_initial(build("mlp", (30,), 10), path)
    with pytest.raises(ConfigError, match="there is no file"):
        load_initial(build("mlp"), tmp_path / "none.safetensors")
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        load_initial(build("mlp"), path)


# --- recurrent models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pad", "keys"), [("shakespeare_lstm", -1, {}), ("stackoverflow_lstm", 0, {"targets": "last_step"})]
)
def test_the_last_step_does_not_depend_on_padding(name, pad, keys):
    model = build(name, outputs=90, **keys).eval()
    x = torch.randint(1, 90, (4, 7), generator=torch_stream(1, "test"))
    padded = torch.cat([x, torch.full((4, 5), pad)], dim=1)
    with torch.no_grad():
        want = model(x)
        assert want.shape == (4, 90)
        assert torch.equal(model(padded), want)
        x[0, -1] = 1 + x[0, -1] % 89
        assert not torch.equal(model(x)[0], want[0])


def test_an_answer_at_every_step_sees_the_past_alone():
    model = build("stackoverflow_lstm", outputs=90).eval()
    x = torch.randint(1, 90, (2, 9), generator=torch_stream(1, "test"))
    changed = x.clone()
    changed[:, 5:] = 0  # padding from step 5 on
    with torch.no_grad():
        a, b = model(x), model(changed)
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.equal(a[:, 5], b[:, 5])


# --- norm ------------------------------------------------------------------------------------------------------


def test_batch_norm_moves_its_buffers_in_training_only():
    # C9: what a client's statistics are. One batch: mean <- 0.9 * 0 + 0.1 * batch mean, var with n - 1.
    model, x = build("mlp", (4,), 3, hidden=(5,), norm="batch"), torch.rand(6, 4)
    state = {n: t.clone() for n, t in model.state_dict().items()}
    model.eval()(x)
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    model.train()(x)
    hidden = model.body[1](x)
    after = model.state_dict()
    assert torch.allclose(after["body.2.running_mean"], 0.1 * hidden.mean(0))
    assert torch.allclose(after["body.2.running_var"], 0.9 + 0.1 * hidden.var(0))
    assert after["body.2.num_batches_tracked"].dtype == torch.int64
    assert int(after["body.2.num_batches_tracked"]) == 1


def test_group_norm_keeps_no_statistics_and_sixteen_channels_a_group():
    model = build("cnn2", norm="group")
    assert not list(model.buffers())
    assert [m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)] == [2, 4]
    assert [m.num_groups for m in build("cnn1", norm="group").modules() if isinstance(m, nn.GroupNorm)] == [1, 1]


# --- cost -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp1", 2 * (784 * 200 + 200 * 10)),
        # conv: 2 * positions * out * (in * 25); 28x28 then 14x14; fc 3136-512-10
        ("cnn2", 2 * (784 * 32 * 25 + 196 * 64 * 32 * 25 + 3136 * 512 + 512 * 10)),
        ("lenet5", 2 * (784 * 64 * 75 + 100 * 64 * 1600 + 1600 * 384 + 384 * 192 + 192 * 10)),
        # 80 steps of four gates in two layers, then fc on the last step
        ("shakespeare_lstm", 2 * (80 * (400 * (8 + 100) + 400 * (100 + 100)) + 100 * 80)),
    ],
)
def test_flops_of_a_forward_pass_for_one_row(name, expected):
    model = build(name)
    assert flops(model, rows(name, n=1)) == flops(model, rows(name, n=3)) == expected
    assert model.training


# --- configuration ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "shape", "said"),
    [
        ({"name": "cnn3"}, DIGIT, "unknown model 'cnn3': did you mean 'cnn"),
        ({"name": "mlp", "hiden": [64]}, (64,), "did you mean 'model.hidden'"),
        ({"name": "mlp", "los": "mse"}, (64,), "did you mean 'model.loss'"),
        ({"name": "mlp", "hidden": ["wide"]}, (64,), "model.hidden"),
        ({"name": "mlp", "hidden": [0]}, (64,), "model.hidden"),
        ({"name": "shakespeare_lstm", "hidden": 0}, (80,), "model.hidden = 0: expected a number of 1 or more"),
        ({"name": "mlp", "hidden": [10**6, 10**6]}, (64,), r"not enough memory for a piece of 4,000.0 GB"),
        ({"name": "cnn2", "padding": "none"}, DIGIT, "model.padding"),
        ({"name": "cnn2"}, (64,), "needs pictures"),
        ({"name": "resnet1"}, (28, 28), "needs pictures"),
        ({"name": "lenet5"}, (1, 8, 8), "too small"),
        ({"name": "shakespeare_lstm"}, COLOUR, "needs rows of token ids"),
        ({"name": "shakespeare_lstm"}, (30,), "cannot read rows of shape"),
        ({"name": "shakespeare_lstm", "norm": "batch"}, (80,), "has no 'norm'"),
        ({"name": "logistic", "projection": 8}, (64,), "has no 'projection'"),
        ({"name": "mlp", "bn": "local"}, (64,), "nothing to act on"),
    ],
)
def test_wrong_tables_get_one_sentence(config, shape, said):
    with pytest.raises(ConfigError) as caught:
        make_model(ModelConfig(**config), shape, 10, seed=1)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_model_refuses_token_ids():
    with pytest.raises(ConfigError, match=r"'mlp' cannot read rows of 80 token ids: .* read token ids"):
        make_model(ModelConfig(name="mlp"), (80,), 80, seed=1, tokens=True)
    assert make_model(ModelConfig(name="shakespeare_lstm"), (80,), 80, seed=1, tokens=True).head.out_features == 80


def test_keys_of_the_table_reach_the_builder():
    config = ModelConfig(name="mlp", hidden=[7, 5], norm="group", projection=3)
    model = make_model(config, (2, 3), 4, seed=1)
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items() if n.endswith("weight")}
    assert shapes["body.1.weight"] == (7, 6)
    assert shapes["body.4.weight"] == (5, 7)
    assert shapes["project.2.weight"] == (3, 5)
    assert shapes["head.weight"] == (4, 3)


def test_describe_names_every_model_with_its_keys_and_size():
    records = {r["name"]: r for r in describe_models()}
    assert set(records) >= set(MODELS)
    assert records["cnn2"]["trainable"] == 1_663_370
    assert records["cnn2"]["parameters"] == {"padding": "same", "norm": "none", "projection": 0}
    assert records["mlp"]["parameters"]["hidden"] == (64,)
    assert all(r["summary"].endswith(".") for r in records.values())


# --- a user's own module ----------------------------------------------------------------------------------------


def test_models_train_on_real_data():
    # A few full-batch steps on the bundled digits must beat the largest class by far.
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    for name, keys in [("mlp", {}), ("cnn1", {}), ("mlp", {"norm": "batch"})]:
        model = make_model(ModelConfig(name=name, **keys), (1, 8, 8), 10, seed=1).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.view(-1, 1, 8, 8)), y).backward()
            optimizer.step()
        right = (model.eval()(x.view(-1, 1, 8, 8)).argmax(1) == y).double().mean()
        assert right > 0.9, name
        assert np.isfinite(float(right))
