"""What is learnt from all parties' rows: answers of one party each that add up, whoever asks and adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configured import set_up
from fedatlas import config, summaries
from fedatlas.data.dataset import Dataset, Partition, Split
from fedatlas.data.preprocess import preprocess
from fedatlas.summaries import Learn, Learnt, Message, StoredRows, Summary, Traffic, in_process
from fedatlas.wire import codec
from test_data_preprocess import CLIENTS, NAN, SCHEMA, both, pictures, table


def over_the_wire(parties: Sequence[StoredRows]) -> Learn:
    """A `Learn` that knows nothing but bytes of the party it asks: messages and answers cross as the codec writes them."""

    def learn(summary: Summary, message: Message) -> Learnt:
        sent = [bytes(codec.encode(message)) for _ in parties]
        said = [codec.encode(summary.of(rows, codec.decode(m))) for rows, m in zip(parties, sent, strict=True)]
        return Learnt(summary.add([codec.decode(answer) for answer in said]), Traffic(1, 2))

    return learn


@pytest.mark.parametrize("scale", ["federated", "client", "none"])
@pytest.mark.parametrize("missing", ["error", "median"])
def test_who_asks_and_adds_up_is_one_parameter(scale, missing):
    """Another driver, to which messages and answers are bytes, settles the same to the bit and says itself what it took."""
    age = torch.tensor([20.0, 40, 30, 50, 60, 99])
    number = Dataset("toy", both(age[:, None], age + 1, age[:2, None], age[:2]), "numbers", schema=SCHEMA[:1])
    for raw in (table(), pictures(), number):
        if missing == "median" and raw.schema:
            raw.train.x[1, 0] = NAN
        one, done = preprocess(raw, CLIENTS, scale, missing)
        learn = over_the_wire(CLIENTS.parties(raw.train))
        other, found = preprocess(raw, CLIENTS, scale, missing, learn=learn)
        asked = found.bytes_up
        assert (found, found.bytes_down) == (replace(done, bytes_up=asked, bytes_down=2 * asked), 2 * asked)
        for name in ("train", "test"):
            assert torch.equal(one.splits[name].x, other.splits[name].x)


def test_each_question_is_of_one_client_and_rows_that_nobody_holds_are_asked_nothing():
    """All that is settled comes of the driver's sums: one that lies about them is believed, and the six questions are all there are."""
    dataset = table()
    dataset.train.x[0, 0] = NAN
    seen = []

    def spying(summary: Summary, message: Message) -> Learnt:
        seen.append(summary)
        parties = CLIENTS.parties(dataset.train)
        assert [set(rows.x[:, 2].tolist()) for rows in parties] == [{1, 5}, {3, 7, 9}]
        return in_process(parties)(summary, message)

    preprocess(dataset, CLIENTS, "federated", "median", learn=spying)
    bisection = [summaries.AT_MOST] * 32
    assert seen == [summaries.CATEGORIES, summaries.MISSING, *bisection, summaries.COLUMN_MOMENTS]
    assert [summary.name for summary in dict.fromkeys(seen) if not summary.linear] == ["cells at most a threshold"]

    def doubled(summary: Summary, message: Message) -> Learnt:
        learnt = in_process(CLIENTS.parties(table().train))(summary, message)
        return learnt._replace(sum={name: 2 * x for name, x in learnt.sum.items()}, traffic=Traffic())

    plain, twice = preprocess(table(), CLIENTS)[1], preprocess(table(), CLIENTS, learn=doubled)[1]
    assert (twice.rules, twice.bytes_up) == (plain.rules, 0)  # twice all sums over twice n
    nobody = in_process(Partition((np.arange(6),)).parties(table().train))
    assert preprocess(table(), CLIENTS, learn=nobody)[1].rules != plain.rules


QUESTIONS = [
    (summaries.COLUMN_MOMENTS, {"columns": [0, 2], "fill": torch.tensor([4.0, NAN, NAN])}),
    (summaries.TARGET_MOMENTS, {}),
    (summaries.CATEGORIES, {"names": {"1": ["blue", "green", "red"]}}),
    (summaries.MISSING, {}),
    (summaries.AT_MOST, {"columns": [0, 2], "threshold": summaries.ordered(torch.tensor([[3.0, 5.0], [-0.0, 8.0]]))}),
    (summaries.CLASSES, {"classes": 3}),
]


@given(st.data())
def test_answers_add_up_to_the_answer_about_all_rows(data):
    """What a server makes of the sum depends on no dealing of the rows (whole numbers here, so that sums are exact)."""
    cells = st.tuples(st.sampled_from([NAN, -3, 0, 4, 8]), st.sampled_from([NAN, 0, 1, 2]), st.integers(-9, 9))
    rows = data.draw(st.lists(st.tuples(cells, st.integers(0, 2)), min_size=2, max_size=12))
    split = Split(torch.tensor([[*map(float, x)] for x, _ in rows]), torch.tensor([y for _, y in rows]))
    cut = data.draw(st.integers(1, len(rows) - 1))
    for summary, message in QUESTIONS:
        dealt = Partition((np.arange(cut), np.arange(cut, len(rows)))).parties(split)
        whole = summary.of(split, message)
        for way in (summaries.in_turn, summaries.in_pieces):
            found = way([summary.of(party, message) for party in dealt])
            assert found.keys() == whole.keys()
            for name, x in whole.items():
                assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(x))


def test_labels_and_thresholds_are_counted_by_hand():
    split = Split(torch.tensor([[1.0], [NAN], [0.0], [-0.0], [-2.0]]), torch.tensor([0, 2, 2, -1, 5]))
    assert summaries.CLASSES.of(split, {"classes": 3})["rows"].tolist() == [1, 0, 2]  # -1 and 5 are none of them
    # -0 stands before 0, and a missing cell behind every number
    for two, counts in (
        ([-0.0, 0.0], [2, 3]),
        ([1.0, torch.inf], [4, 5]),
        ([-3.0, -2.0], [0, 1]),
        ([0.5, 0.5], [3, 3]),
    ):
        threshold = summaries.ordered(torch.tensor([two]))
        assert summaries.AT_MOST.of(split, {"columns": [0], "threshold": threshold})["at_most"].tolist() == [counts]


@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9),
        min_size=1,
        max_size=5,
    )
)
def test_federated_medians_are_exact(parts):
    tensors = [torch.tensor(part, dtype=torch.float32)[:, None] for part in parts]
    splits = [Split(torch.cat((t, torch.full((1, 1), NAN))), torch.zeros(len(t) + 1)) for t in tensors]
    cells = torch.tensor([sum(map(len, parts))])
    value, traffic = summaries.medians(in_process(splits), [0], cells)
    assert value.item() == np.median(np.concatenate(parts).astype(np.float64))
    assert traffic.up == traffic.down > 0  # as far as the codec fills up to 64 bytes


def test_what_a_set_up_learns_is_asked_of_the_learner_it_is_given(tmp_path: Path) -> None:
    """A table of numbers and categories: three questions, of clients with 20 rows each; the classes are for a notice alone."""
    rows = [f"{i / 7:.3f},{'abc'[i % 3]},{'yes' if i % 2 else 'no'}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,c,y", *rows]) + "\n")
    given = ["data.name=file", f"data.path={tmp_path / 't.csv'}", "data.label=y", "partition.name=iid"]
    asked: list[str] = []

    def learner(parties: Sequence[StoredRows]) -> Learn:
        assert sum(len(rows.y) for rows in parties) == 45  # the others are test rows
        learn = in_process(parties)

        def spying(summary: Summary, message: Message) -> Learnt:
            asked.append(summary.name)
            return learn(summary, message)

        return spying

    chosen = config.read(None, [*given, "partition.clients=3"])
    assert set_up(chosen, 1, learner=learner).before == set_up(chosen, 1).before
    assert asked == ["categories", "moments of columns", "classes"]


def test_a_class_that_no_client_trains_on_is_said_to_be_one(tmp_path: Path) -> None:
    """Class 2 has one row beside its test row: where its client keeps that one for validation, nobody learns the class."""
    x, y = np.zeros((21, 2), np.float32), np.array([0, 1] * 10 + [2])
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[20:])
    given = ["data.name=file", f"data.path={tmp_path / 't.npz'}", "partition.name=iid", "partition.clients=2"]
    chosen, found = config.read(None, [*given, "evaluation.on=validation", "evaluation.validation=0.5"]), set()
    for seed in range(1, 7):
        setup = set_up(chosen, seed)
        trained = 2 in setup.dataset.train.y[np.concatenate(setup.partition.clients)].tolist()
        said = any("a class that no training row has ('2')" in notice for notice in setup.notices)
        assert said != trained
        found.add(said)
    assert found == {True, False}
