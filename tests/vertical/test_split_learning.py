"""Split learning: the joined network trained in one place, order of rows, letters, files, labels told by gradients (V5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedatlas
from boosting_federation import Table, federation_of, parties_of
from fedatlas import api
from fedatlas.errors import ConfigError, DataError, DivergedError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.start import RoundStart
from fedatlas.prediction.parties import outputs_of
from fedatlas.record.run_folder import RunFolder
from fedatlas.rng import torch_stream
from fedatlas.runs.columns_labels import LettersHeard
from fedatlas.vertical.letters import LETTERS
from fedatlas.vertical.networks import SPLIT, CutNetworks, split_learning
from fedatlas.vertical.networks.guesses import by_direction, by_length, labels_told
from fedatlas.vertical.networks.network import first_body, first_fusion, scale_of
from fedatlas.vertical.parties import PartyLeft, tensor
from fedatlas.vertical.scheme import KnownRows
from test_secureboost import made
from test_softmax import made as made_classes
from test_vertical_run import IDS, plain_rows, tables

HOW = split_learning(rounds=3, hidden=(5, 3), learning_rate=0.3, batch_size=7)
TABLES = {
    "two classes": made(n=90),
    "three classes": made_classes(90),
    "a number": made(n=90, task="numbers"),
    "weights": made(n=90)._replace(weight=np.random.default_rng(3).uniform(0.1, 3, 90)),
}
OWNERS = {1: [[0, 1, 2, 3, 4, 5]], 2: [[0, 2, 4], [1, 3, 5]], 3: [[1], [5, 4], [0, 2, 3]]}
TRAIN = np.setdiff1d(np.arange(90), np.arange(3, 90, 5))
TEST = np.setdiff1d(np.arange(90), TRAIN)


class Done:
    """A training in this process, without matching."""

    def __init__(self, table: Table, owners: Any, how: CutNetworks = HOW, active: int = 0, observers: Any = ()):
        self.parties, self.how = parties_of(table, owners, active), how
        self.held, server = federation_of(self.parties, how, TRAIN, observers, SPLIT)
        self.server = self.held.drive(SPLIT.begin(how, server), RoundStart(1, 0.0))
        for number in range(1, how.rounds + 1):
            self.server = self.held.drive(SPLIT.step(how, self.server, number), RoundStart(1 + number, 0.0))

    def nets(self, party: int) -> Any:
        return self.held.states.get(party)["nets"]

    @property
    def outputs(self) -> np.ndarray:
        return SPLIT.outputs(self.held.states.get(self.parties[0].active))


# ------------------------------------------------------------------------------------------------ the joined network


class Joined(nn.Module):
    """The whole network in one place: a body for each block of columns, side by side, and a linear layer on top."""

    def __init__(self, owners: Sequence[Sequence[int]], outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(
            nn.Sequential(nn.Linear(len(own), 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU()) for own in owners
        )
        self.head, self.owners = nn.Linear(3 * len(owners), outputs), owners
        for k, own in enumerate(owners):
            self.bodies[k].load_state_dict(dict(first_body(len(own), (5, 3), 0, k)))
        self.head.load_state_dict(dict(first_fusion(3 * len(owners), outputs, 0)))
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(
            torch.cat([body(x[:, list(own)]) for body, own in zip(self.bodies, self.owners, strict=True)], 1)
        )


def joined(table: Table, owners: Sequence[Sequence[int]], dtype: torch.dtype) -> tuple[Joined, np.ndarray]:
    """The network after three epochs of torch's own SGD on the joined table, and what it says of all rows."""
    x, y = table.x, table.y
    known = np.where(np.isnan(x), np.nan, (x - np.nanmean(x[TRAIN], 0)) / np.nanstd(x[TRAIN], 0))
    rows = torch.from_numpy(np.nan_to_num(known)).to(dtype)
    classes = 0 if table.task == "numbers" else int(y.max()) + 1
    mean, sd = (0.0, 1.0) if classes else (y[TRAIN].mean(), y[TRAIN].std())
    target = torch.from_numpy(y.astype(np.int64)) if classes else torch.from_numpy((y - mean) / sd).to(dtype)
    network = Joined(owners, max(classes, 1), dtype)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.3)
    for number in (1, 2, 3):
        order = TRAIN[torch.randperm(len(TRAIN), generator=torch_stream(0, "shuffle", number, 0, 0)).numpy()]
        for at in (order[start : start + 7] for start in range(0, len(order), 7)):
            said = network(rows[at])
            each = F.cross_entropy(said, target[at], reduction="none") if classes else (said[:, 0] - target[at]) ** 2
            share = torch.ones(len(at), dtype=dtype)
            share = share if table.weight is None else torch.from_numpy(table.weight[at]).to(dtype)
            optimiser.zero_grad()
            ((share * each).sum() / share.sum()).backward()
            optimiser.step()
    with torch.no_grad():
        out = network(rows).double()
    if not classes:
        return network, out[:, 0].numpy() * sd + mean
    return network, (out[:, 1] - out[:, 0] if classes == 2 else out.log_softmax(1)).numpy()


@pytest.mark.parametrize(("bits", "close"), [(32, 1e-6), (64, 1e-12)])
@pytest.mark.parametrize("parties", OWNERS)
@pytest.mark.parametrize("kind", TABLES)
def test_parties_train_the_network_of_the_joined_table(kind: str, parties: int, bits: int, close: float) -> None:
    table, owners, how = TABLES[kind], OWNERS[parties], HOW._replace(bits=bits)
    found = Done(table, owners, how, active=parties - 1)
    network, expected = joined(table, owners, how.dtype)
    for k in range(parties):
        for name, one in network.bodies[k].state_dict().items():
            torch.testing.assert_close(found.nets(k)["weights"][name], one, rtol=close, atol=close)
    for name, one in network.head.state_dict().items():
        torch.testing.assert_close(found.nets(parties - 1)["fusion"][name], one, rtol=close, atol=close)
    np.testing.assert_allclose(found.outputs[TEST], expected[TEST], rtol=10 * close, atol=10 * close)


@pytest.mark.parametrize("kind", TABLES)
def test_a_written_model_predicts_as_the_trained_one(kind: str) -> None:
    found, states = Done(TABLES[kind], OWNERS[3], active=1), PartyState()
    model = SPLIT.export(found.parties[1], found.held.states.get(1))["model"]
    for one in found.parties:
        exported = SPLIT.export(one, found.held.states.get(one.party))
        assert (exported["model"] is None) == (one.party != 1)
        loaded = SPLIT.load(one, {**exported, "model": model if one.party == 1 else None})
        states.after.put(one.party, {**loaded, "align": {"order": tensor(np.arange(90))}})
    said = outputs_of(found.parties, states, SPLIT, HOW)[0]
    np.testing.assert_allclose(said[TEST], found.outputs[TEST], rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------ letters


def test_only_embeddings_and_each_partys_own_gradients_cross() -> None:
    heard = LettersHeard()
    Done(TABLES["three classes"], OWNERS[3], active=1, observers=[heard])
    for party in (0, 2):
        sent = [one for one in heard.letters[party] if one["from"] == party]
        came = [one for one in heard.letters[party] if one["from"] != party]
        batches = -(-len(TRAIN) // 7)
        assert [one["topic"] for one in came] == ["cut gradients"] * 3 * batches
        assert all(one["from"] == 1 and one["to"] == [party] for one in came)
        assert {one["topic"] for one in sent} == {"embeddings", "embeddings to judge"}
        assert all(one["to"] == [1] for one in sent)
        for one in (*sent, *came):
            assert {*one["content"]} == {"rows"}
            assert one["content"]["rows"].shape[1] == 3
        for topic, letters in (("embeddings", sent), ("cut gradients", came)):
            rows = sum(len(one["content"]["rows"]) for one in letters if one["topic"] == topic)
            assert rows == 3 * len(TRAIN), "each row once in every round, each way"
        assert sum(len(one["content"]["rows"]) for one in sent if one["topic"] == "embeddings to judge") == 4 * len(
            TEST
        )


def test_the_page_says_what_the_table_of_the_report_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vertical.md").read_text()
    for row in SPLIT.words.learns(HOW, False):
        assert f"| {' | '.join(row)} |" in page


@pytest.mark.parametrize("topic", ["embeddings", "cut gradients", "embeddings to judge"])
def test_a_letter_of_another_form_is_lost_in_the_name_of_its_sender(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = parties_of(TABLES["two classes"], OWNERS[2])
    held, server = federation_of(parties, HOW, TRAIN, (), SPLIT)
    asked = held.party.answer

    def shorter(requests: Any) -> Any:
        for answer in asked(requests):
            letters = [
                {**one, "content": {"rows": one["content"]["rows"][:-1]}} if one["topic"] == topic else one
                for one in answer.reply.update.get(LETTERS, [])
            ]
            update = {**answer.reply.update, **({LETTERS: letters} if letters else {})}
            yield answer._replace(reply=answer.reply._replace(update=update))

    monkeypatch.setattr(held.party, "answer", shorter)
    name = "p0" if topic == "cut gradients" else "p1"

    def both() -> Any:
        return (yield from SPLIT.step(HOW, (yield from SPLIT.begin(HOW, server)), 1))

    with pytest.raises(PartyLeft, match=f"party '{name}' is lost: its letter '{topic}' cannot be used"):
        held.drive(both, RoundStart(1, 0.0))


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("hidden", [[], [8, 0], [-3]])
def test_networks_without_units_are_refused(hidden: list[int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hidden"):
        api.run(experiment(tmp_path, hidden=hidden), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_party_without_columns_is_refused() -> None:
    with pytest.raises(DataError, match="party 'p1' has no column to learn from"):
        Done(TABLES["two classes"], [[0, 1], []])


def test_a_column_with_one_value_or_none_changes_nothing_but_its_own_weights() -> None:
    x = np.array([[0.1, np.nan, 1.0], [0.1, np.nan, 2.0], [0.1, np.nan, np.nan]])
    scaled = scale_of(x).of(np.vstack([x, [7.0, 3.0, 1.5]]), torch.float64)
    assert scaled[:3, :2].abs().max() < 1e-12
    assert scaled[:3, 2].tolist() == [-1.0, 1.0, 0.0]
    assert bool(torch.isfinite(scaled).all())


def test_a_rate_that_is_too_large_ends_as_diverged_with_the_rounds_before(tmp_path: Path) -> None:
    tables(tmp_path)
    with pytest.raises(DivergedError, match=r"lower algorithm\.learning_rate, in round 1: 0 whole rounds are kept"):
        api.run(experiment(tmp_path, learning_rate=1e20), out=tmp_path / "run", baselines=False)
    assert "diverged" in RunFolder(tmp_path / "run").summary()


# ------------------------------------------------------------------------------------------------ whole runs


def experiment(folder: Path, **keys: Any) -> fedatlas.Experiment:
    parties = [{"name": n, "path": str(folder / f"{n}.csv"), "id": IDS[n]} for n in ("bank", "shop")]
    parties[0]["label"] = "default"
    made = {"rounds": 2, "learning_rate": 0.2, "batch_size": 16, **keys}
    return fedatlas.Experiment.of(parties=parties, algorithm={"name": "split", **made})


def weights(path: Path) -> Mapping[str, Any]:
    names = ("model.json", "model-bank.json", "model-shop.json")
    return {name: RunFolder(path).read_json(name) for name in names}


def test_the_order_of_a_partys_rows_changes_nothing_and_a_dry_run_knows_the_bytes(tmp_path: Path) -> None:
    held = tables(tmp_path)
    both = {*held["bank"]["customer"]} & {*held["shop"]["client"]}
    for name in ("bank", "shop"):
        table = held[name]
        table[table[IDS[name]].isin(both)].to_csv(tmp_path / f"{name}.csv", index=False)
    first = api.run(experiment(tmp_path), out=tmp_path / "first", baselines=False)
    before = fedatlas.dry_run(experiment(tmp_path))
    held["shop"][held["shop"]["client"].isin(both)].sample(frac=1, random_state=9).to_csv(
        tmp_path / "shop.csv", index=False
    )
    second = api.run(experiment(tmp_path), out=tmp_path / "second", baselines=False)
    assert plain_rows(first.path) == plain_rows(second.path)
    assert weights(first.path) == weights(second.path)
    row = RunFolder(first.path).rows()[1]
    sent = row["bytes_up"] + row["bytes_down"]
    train, test = (first.summary["rows"][part] for part in ("train", "test"))
    numbers = 2 * 16 * 4 * (2 * train + test)  # both ways by the coordinator
    assert before["bytes_per_tree"] == pytest.approx(sent, abs=2_000), "but for the question of the figures"
    assert numbers < sent < 1.2 * numbers
    assert before["bytes_beginning"] == pytest.approx(2 * 16 * 4 * test, abs=2_000), (
        "the first embeddings of rows that judge"
    )
    row = RunFolder(first.path).rows()[0]
    assert before["bytes_alignment"] + before["bytes_beginning"] == pytest.approx(
        row["bytes_up"] + row["bytes_down"], rel=0.2
    )


# ------------------------------------------------------------------------------------------------ labels told


def test_gradients_of_a_linear_fusion_tell_the_label_of_every_row() -> None:
    """By hand: gradients of the rarer class are longer and point the other way."""
    y = np.array([True, True, True, False, False, False, False, False])
    rounds = [np.where(y, -3.0, 1.0)[:, None] * np.array([[1.0, 2.0]])]
    assert by_length(rounds, y) == 1.0
    assert by_length(rounds, ~y) == 0.0 + 1.0
    assert by_direction(rounds, y, np.array([0, 3])) == 1.0
    assert by_direction([np.zeros((8, 2))], y, np.array([0, 3])) == 0.5
    assert by_direction([-rounds[0], rounds[0]], y, np.array([0])) == 1.0, "a known row of each is not needed"


@pytest.mark.parametrize("kind", ["two classes", "three classes", "a number"])
def test_a_party_without_the_label_finds_labels_in_its_gradients(kind: str) -> None:
    heard, table = LettersHeard(), TABLES[kind]
    Done(table, OWNERS[2], observers=[heard])
    rows = KnownRows(90, TRAIN, table.y[TRAIN], table.task, 0)
    told = labels_told(HOW, 1, heard.letters[1], rows)
    assert told["direction"] > (0.99 if kind == "two classes" else 0.75)
    shuffled = rows._replace(y=np.random.default_rng(0).permutation(rows.y))
    assert abs(labels_told(HOW, 1, heard.letters[1], shuffled)["direction"] - 0.5) < 0.2


def test_the_report_says_so_and_tells_how_well_labels_are_guessed(tmp_path: Path) -> None:
    tables(tmp_path)
    done = api.run(experiment(tmp_path), out=tmp_path / "run")
    told = done.summary["labels_told"]["cases"][0]["auc"]["shop"]
    assert told["direction"] > 0.95
    page = (done.path / "report.html").read_text()
    assert "What the gradients at the cut tell of labels" in page
    assert "from nothing but the gradients at its embeddings" in page
