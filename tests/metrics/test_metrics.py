import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from configured import set_up
from fedatlas import Experiment, config, load, run
from fedatlas.course.evaluation import Evaluator
from fedatlas.errors import ConfigError
from fedatlas.metrics import resampling
from fedatlas.metrics.fairness import client_summary, drift_correlation, squared_distances
from fedatlas.metrics.quality import (
    accuracy,
    auc,
    by_target,
    calibration,
    class_figures,
    class_sums,
    confusion_matrix,
    log_loss,
    macro_f1,
    margins,
    number_figures,
    number_sums,
    per_class_f1,
    predictions,
)
from fedatlas.models import make_loss
from fedatlas.rng import numpy_stream, torch_stream

SEEDS = st.integers(0, 100_000)
CASES = settings(max_examples=40, deadline=None)


def labels(seed, n=60, classes=6):
    """Random true and predicted classes (some classes absent), losses and weights."""
    stream = numpy_stream(seed, "test")
    present = stream.choice(classes, size=stream.integers(1, classes + 1), replace=False)
    y, p = stream.choice(present, n), stream.integers(0, stream.integers(1, classes + 1), n)
    return y, np.where(stream.random(n) < 0.5, y, p), stream.random(n), stream.random(n) + 0.1


# --- classification ---------------------------------------------------------------------------------------------


@CASES
@given(SEEDS, st.booleans())
def test_figures_of_classes_equal_scikit_learns(seed, weighted):
    y, p, losses, w = labels(seed)
    w = w if weighted else None
    ours = class_figures(class_sums(p, y, losses, 6, w))
    assert ours["accuracy"] == pytest.approx(sk.accuracy_score(y, p, sample_weight=w), abs=1e-12)
    for average in ("macro", "weighted"):  # scikit-learn's default labels: those true or predicted
        theirs = sk.f1_score(y, p, average=average, sample_weight=w)
        assert ours[f"{average}_f1"] == pytest.approx(theirs, abs=1e-12)
    f1 = sk.f1_score(y, p, average=None, labels=range(6), sample_weight=w, zero_division=np.nan)
    assert [math.nan if v is None else v for v in ours["per_class_f1"]] == pytest.approx(f1, abs=1e-12, nan_ok=True)
    recall = sk.recall_score(y, p, average=None, labels=range(6), sample_weight=w, zero_division=np.nan)
    found = [math.nan if v is None else v for v in ours["per_class_accuracy"]]
    assert found == pytest.approx(recall, abs=1e-12, nan_ok=True)
    assert ours["loss"] == pytest.approx(np.average(losses, weights=w), abs=1e-12)
    matrix = sk.confusion_matrix(y, p, labels=range(6), sample_weight=w)
    assert np.allclose(confusion_matrix(p, y, 6, w), matrix, atol=1e-12)


def test_macro_f1_by_hand():
    # class 0: 2*1/(2+1) = 2/3, class 1: 2*1/(1+2) = 2/3, class 2 nowhere, class 3 predicted only... here neither
    sums = class_sums(np.array([0, 1, 1]), np.array([0, 0, 1]), np.zeros(3), 4)
    assert per_class_f1(sums).tolist() == pytest.approx([2 / 3, 2 / 3, math.nan, math.nan], nan_ok=True)
    assert macro_f1(sums) == pytest.approx(2 / 3)
    # a class that is predicted but never true counts, with F1 = 0
    assert macro_f1(class_sums(np.array([0, 3]), np.array([0, 0]), np.zeros(2), 4)) == pytest.approx((2 / 3 + 0) / 2)


@CASES
@given(SEEDS, st.integers(1, 59))
def test_batches_add_up_in_any_order(seed, cut):
    y, p, losses, w = labels(seed)
    whole = class_figures(class_sums(p, y, losses, 6, w))
    parts = [class_sums(p[s], y[s], losses[s], 6, w[s]) for s in (slice(0, cut), slice(cut, None))]
    for joined in (parts[0] + parts[1], parts[1] + parts[0]):
        for key, value in class_figures(joined).items():
            assert value == pytest.approx(whole[key], abs=1e-12)


def test_ends_of_sentences_are_no_words(tmp_path):
    """M10: accuracy passes over pad, bos and eos; with the ends, and without words outside the vocabulary, it stands beside."""
    ids = np.random.default_rng(0).integers(0, 9, (40, 5))
    targets = np.where(np.arange(40)[:, None] % 9 == np.arange(5), 8, ids)
    np.savez(tmp_path / "a.npz", x_train=ids, y_train=targets, x_test=ids, y_test=targets)
    chosen = [
        "data.name=file",
        f"data.path={tmp_path / 'a.npz'}",
        "model={name='stackoverflow_lstm', hidden=4, embedding=4}",
    ]
    setup = set_up(config.read(None, [*chosen, "partition={name='iid', clients=2}"]), 1)
    special = {"pad": 0, "oov": 6, "bos": 7, "eos": 8}
    setup = setup._replace(held=setup.held._replace(dataset=replace(setup.dataset, facts={"special": special})))
    evaluator = Evaluator(setup)
    model = setup.models().initial()[""]
    predicted, y = evaluator.scores(model, evaluator.rows).predicted, evaluator.rows.y
    hit = predicted == y

    def share(*left_out):
        counted = ~torch.isin(y, torch.tensor(left_out))
        return pytest.approx(float(hit[counted].double().mean()))

    found = evaluator.detail(model)["word_accuracy"]
    assert evaluator.figures(model)["accuracy"] == share(0, 7, 8) == found["words"]
    assert evaluator.interval(model, evaluator.rows).estimate == share(0, 7, 8)
    assert found["words_and_ends"] == share(0, 7)
    assert (found["known_words"], found["known_words_and_ends"]) == (share(0, 6, 7, 8), share(0, 6, 7))


def test_a_model_that_answers_at_other_steps_than_the_data_ask_is_refused(tmp_path):
    ids = np.random.default_rng(0).integers(0, 9, (40, 5))
    for name, y in (("each", ids), ("once", ids[:, 0] % 2)):
        np.savez(tmp_path / f"{name}.npz", x_train=ids, y_train=y, x_test=ids, y_test=y)

    def made(file, model):
        data = {"name": "file", "path": str(tmp_path / f"{file}.npz")}
        model = {"name": "stackoverflow_lstm", "hidden": 4, "embedding": 4, **model}
        return set_up(Experiment.of(data=data, model=model, partition={"name": "iid", "clients": 2}).config, 1)

    with pytest.raises(ConfigError, match="has one output per row, but these data have one target per step"):
        made("each", {"targets": "last_step"})
    with pytest.raises(ConfigError, match="has one output per step, but these data have one target per row"):
        made("once", {"vocabulary": 9})
    with pytest.raises(
        ConfigError, match=r"does not know token 8, the largest of these data: set model.vocabulary = 9"
    ):
        made("once", {"targets": "last_step"})
    made("once", {"targets": "last_step", "vocabulary": 9})


def test_an_answer_at_every_step_is_read_at_the_last_token(tmp_path):
    ids = np.random.default_rng(0).integers(1, 9, (40, 5))
    np.savez(tmp_path / "a.npz", x_train=ids, y_train=ids, x_test=ids, y_test=ids)
    data = {"name": "file", "path": str(tmp_path / "a.npz")}
    model = {"name": "stackoverflow_lstm", "hidden": 4, "embedding": 4, "vocabulary": 9}
    made = Experiment.of(rounds=0, data=data, model=model, partition={"name": "iid", "clients": 2})
    loaded = load(run(made, out=tmp_path / "run", baselines=False).path)
    short = torch.tensor([[3, 1, 0, 0, 0], [3, 1, 4, 1, 5]])
    with torch.inference_mode():
        outputs = torch.softmax(loaded.model(short).double(), -1)
    found = loaded.predict(short).filter(like="p_").to_numpy()
    assert found == pytest.approx(torch.stack([outputs[0, 1], outputs[1, 4]]).numpy())
    assert not np.allclose(outputs[0, 1], outputs[0, 4])


def test_tokens_leave_out_what_is_ignored_and_can_leave_out_more():
    y = torch.tensor([[3, 2, 0], [1, 0, 0]])  # 0 = padding, 1 = end of sentence
    p = torch.tensor([[3, 4, 0], [1, 0, 2]])
    losses = torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]])
    sums = class_sums(p, y, losses, 5, ignore=0)
    assert sums.weight == 3
    assert class_figures(sums)["loss"] == pytest.approx(2.0)
    assert accuracy(sums) == pytest.approx(2 / 3)
    assert accuracy(sums, exclude=(1,)) == pytest.approx(1 / 2)
    weighted = class_sums(p, y, losses, 5, weights=torch.tensor([1.0, 2.0]), ignore=0)
    assert accuracy(weighted) == pytest.approx(3 / 4)
    assert confusion_matrix(p, y, 5, ignore=0).sum() == 3


def test_a_vocabulary_of_ten_thousand_needs_no_matrix():
    stream = numpy_stream(1, "test")
    y, p = stream.integers(0, 10_004, 500), stream.integers(0, 10_004, 500)
    sums = class_sums(p, y, np.ones(500), 10_004)
    assert sums.true.nbytes + sums.predicted.nbytes + sums.hits.nbytes == 3 * 8 * 10_004
    assert macro_f1(sums) == pytest.approx(sk.f1_score(y, p, average="macro"), abs=1e-12)


def test_no_rows_no_figures():
    empty = class_sums(np.zeros(0, int), np.zeros(0, int), np.zeros(0), 2)
    assert class_figures(empty) == {
        "accuracy": None,
        "macro_f1": None,
        "weighted_f1": None,
        "per_class_f1": [None, None],
        "per_class_accuracy": [None, None],
        "loss": None,
    }


def figures(task, outputs, y, classes, loss):
    """Of a model's raw outputs for all rows at once."""
    losses = loss.elements(outputs, y)
    if task == "numbers":
        return number_figures(number_sums(outputs, y, losses))
    skip = -100 if task == "tokens" else None
    return class_figures(class_sums(predictions(outputs), y, losses, classes, None, skip))


def test_figures_of_raw_outputs():
    outputs, y = torch.randn((50, 4), generator=torch_stream(1, "test")), torch.arange(50) % 4
    found = figures("classes", outputs, y, 4, make_loss("auto", "classes", 4))
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y, outputs.argmax(1)))
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, y)), abs=1e-6)
    # one raw score: above 0 is class 1
    score, y = torch.tensor([[-1.0], [2.0], [0.5]]), torch.tensor([0, 1, 0])
    assert predictions(score).tolist() == [0, 1, 1]
    assert figures("classes", score, y, 2, make_loss("hinge", "classes", 2))["accuracy"] == pytest.approx(2 / 3)
    tokens = torch.zeros(2, 3, 4)
    tokens[..., 2] = 1
    found = figures("tokens", tokens, torch.tensor([[2, 1, -100], [2, -100, -100]]), 4, make_loss("auto", "tokens", 4))
    assert found["accuracy"] == pytest.approx(2 / 3)
    # the mean over tokens, as in training: log(3 + e) - (1, 0, 1)
    assert found["loss"] == pytest.approx(math.log(3 + math.e) - 2 / 3, abs=1e-6)
    numbers = figures("numbers", torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0]), 0, make_loss("mae", "numbers"))
    assert numbers["loss"] == 1.0
    assert numbers["rmse"] == pytest.approx(math.sqrt(2))


# --- numbers ----------------------------------------------------------------------------------------------------


@CASES
@given(SEEDS, st.integers(1, 39), st.booleans())
def test_figures_of_numbers_equal_scikit_learns(seed, cut, weighted):
    stream = numpy_stream(seed, "test")
    y, w = stream.normal(size=40) * 3 + 5, stream.random(40) + 0.1
    p = y + stream.normal(size=40)
    w = w if weighted else np.ones(40)
    parts = [number_sums(p[s], y[s], (p - y)[s] ** 2, w[s]) for s in (slice(0, cut), slice(cut, None))]
    ours = number_figures(parts[0] + parts[1])
    assert ours["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p, sample_weight=w))
    assert ours["mae"] == pytest.approx(sk.mean_absolute_error(y, p, sample_weight=w))
    assert ours["r2"] == pytest.approx(sk.r2_score(y, p, sample_weight=w))
    assert ours["loss"] == pytest.approx(sk.mean_squared_error(y, p, sample_weight=w))


def test_r2_survives_targets_far_from_zero():
    # sums of squares around 1e18 would leave nothing of a spread of 1 in float64
    y = 1e9 + np.array([0.0, 1.0, 2.0, 3.0])
    p = y + np.array([0.5, -0.5, 0.5, -0.5])
    sums = number_sums(p[:2], y[:2], np.zeros(2)) + number_sums(p[2:], y[2:], np.zeros(2))
    assert number_figures(sums)["r2"] == pytest.approx(1 - 1 / 5)


def test_r2_of_constant_targets_is_not_defined():
    assert number_figures(number_sums(np.ones(3), np.ones(3), np.zeros(3)))["r2"] is None


@given(st.floats(-1e9, 1e9), st.integers(1, 40), st.integers(0, 39))
def test_r2_of_equal_targets_is_undefined(value, n, cut):
    """Their mean is rounded, so that a spread of rounding errors is left, of which R^2 was -1e31; also in parts and in draws."""
    y, p, w = np.full(n + 1, value), np.linspace(-1, 1, n + 1), np.linspace(0.1, 3, n + 1)
    y[-1], w[-1] = value + 1, 0  # a row that does not count
    parts = [number_sums(p[s], y[s], np.zeros_like(p[s]), w[s]) for s in (slice(0, cut), slice(cut, None))]
    for sums in (number_sums(p, y, np.zeros_like(p), w), parts[0] + parts[1]):
        assert number_figures(sums)["r2"] is None
    w[-1] = 1
    draws = np.ones((2, n + 1))
    draws[0, -1] = 0  # the row that differs is not drawn
    found = resampling.of_numbers(p, y, w)(draws)["r2"]
    assert np.isnan(found[0])


# --- two classes ------------------------------------------------------------------------------------------------


@CASES
@given(SEEDS, st.booleans(), st.booleans())
def test_two_class_figures_equal_scikit_learns(seed, weighted, ties):
    stream = numpy_stream(seed, "test")
    y = np.append(stream.integers(0, 2, 48), [0, 1])
    p = stream.random(50)
    p = np.round(p, 1) if ties else p
    w = stream.random(50) + 0.1 if weighted else None
    assert auc(p, y, w) == pytest.approx(sk.roc_auc_score(y, p, sample_weight=w))
    inside = p * 0.98 + 0.01
    assert log_loss(inside, y, w) == pytest.approx(sk.log_loss(y, inside, sample_weight=w))
    if not ties and not weighted:
        found = calibration(p, y, bins=5)
        true, predicted = calibration_curve(y, p, n_bins=5, strategy="uniform")
        assert [b.observed for b in found.bins] == pytest.approx(true)
        assert [b.predicted for b in found.bins] == pytest.approx(predicted)


def test_auc_by_hand():
    # pairs (0.4 vs 0.2, 0.4 vs 0.6, 0.9 vs both, 0.2 ties count half)
    assert auc(np.array([0.4, 0.9, 0.2, 0.6]), np.array([1, 1, 0, 0])) == 3 / 4
    assert auc(np.array([0.5, 0.5]), np.array([0, 1])) == 1 / 2
    assert auc(np.array([0.5, 0.7]), np.array([1, 1])) is None


def test_calibration_by_hand():
    # bin [0.2, 0.4]: p 0.3, 0.4 -> mean 0.35, observed 1/2, weight 2; bin (0.8, 1]: p 1.0 -> observed 1, weight 1
    found = calibration(np.array([0.3, 0.4, 1.0]), np.array([0, 1, 1]), bins=5)
    assert [(b.low, b.high, b.weight) for b in found.bins] == [(0.2, 0.4, 2), (0.8, 1.0, 1)]
    assert found.error == pytest.approx(2 / 3 * 0.15)
    # weights: row 2 three times as heavy: predicted 0.375, observed 3/4
    found = calibration(np.array([0.3, 0.4]), np.array([0, 1]), np.array([1.0, 3.0]), bins=5)
    assert found.error == pytest.approx(0.375)


def test_predictions_by_the_size_of_the_target_by_hand():
    # few numbers: a span each; the mean of 1 and 5 is 3, of weights 1 and 3 it is 4
    y, p = np.array([2.0, 7.0, 2.0, 7.0]), np.array([1.0, 8.0, 5.0, 6.0])
    small, large = by_target(p, y, np.array([1.0, 1.0, 3.0, 1.0]))
    assert (small.low, small.high, small.weight, small.true, small.predicted) == (2, 2, 4, 2, 4)
    assert small.rmse == pytest.approx(math.sqrt((1 + 3 * 9) / 4))
    assert (large.predicted, large.p10, large.p90) == pytest.approx((7, 6.2, 7.8))
    # many: spans of equally many rows, in order, none lost, equal numbers together
    y = np.concatenate([np.arange(40.0), np.full(60, 100.0)])
    found = by_target(y, y, spans=5)
    assert [(span.low, span.high, span.weight) for span in found] == [(0, 19, 20), (20, 39, 20), (100, 100, 60)]
    assert all(span.true == span.predicted for span in found)


def test_margins_are_log_odds():
    logits = torch.tensor([[1.0, 3.0], [0.0, -2.0]])
    assert margins(logits).tolist() == [2.0, -2.0]
    assert torch.allclose(margins(logits).sigmoid(), logits.double().softmax(1)[:, 1])
    assert margins(torch.tensor([[0.5], [1.5]])).tolist() == [0.5, 1.5]


# --- clients ----------------------------------------------------------------------------------------------------


def test_client_summary_by_hand():
    found = client_summary([0.5, 0.8, 1.0, None], [10, 30, 60, 5])
    assert found["mean"] == pytest.approx(0.05 + 0.24 + 0.6)
    assert found["min"] == 0.5
    assert found["p10"] == pytest.approx(0.5 + 0.2 * 0.3)  # position 0.1 * 2 between 0.5 and 0.8
    assert client_summary([0.7, 0.1], [4, 0]) == {"mean": pytest.approx(0.7), "p10": pytest.approx(0.7), "min": 0.7}
    assert client_summary([], []) == {"mean": None, "p10": None, "min": None}


def test_drift_correlation_equals_spearmans():
    stream = numpy_stream(1, "test")
    models, shares = stream.normal(size=(7, 200)), stream.dirichlet(np.ones(5), 7)
    pairs = [(k, j) for k in range(7) for j in range(k + 1, 7)]
    drift = [((models[k] - models[j]) ** 2).sum() for k, j in pairs]
    label = [((shares[k] - shares[j]) ** 2).sum() for k, j in pairs]
    assert drift_correlation(models, shares) == pytest.approx(spearmanr(drift, label).statistic)
    # models that are the label shares, stretched and in float32, drift exactly as their labels do
    assert drift_correlation((shares * 3).astype(np.float32), shares) == pytest.approx(1.0)
    assert drift_correlation(models[:2], shares[:2]) is None
    assert drift_correlation(np.ones((4, 3)), shares[:4]) is None


def test_distances_in_pieces_equal_the_whole(monkeypatch):
    rows = numpy_stream(1, "test").normal(size=(4, 100))
    whole = squared_distances(rows)
    monkeypatch.setattr("fedatlas.metrics.fairness._COLUMNS", 7)
    assert squared_distances(rows) == pytest.approx(whole, rel=1e-12)
    assert whole[0] == pytest.approx(((rows[0] - rows[1]) ** 2).sum())
