"""What the configuration alone forbids is refused before any data are read, by one function."""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from configured import set_up
from fedatlas import Algorithm, config
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.api import dry_run
from fedatlas.data import by_name
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.registry import PLUGINS
from fedatlas.setup import refusals
from fedatlas.setup.resolution import resolve


class Read(AssertionError):
    """The data were read."""


@pytest.fixture(autouse=True)
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that nobody may look at."""

    def load(request: Any) -> Any:
        raise Read

    monkeypatch.setitem(by_name.SOURCES, "digits", replace(by_name.SOURCES["digits"], load=load))


def test_without_a_refusal_the_data_are_read() -> None:
    with pytest.raises(Read):
        set_up(config.read(None), 1)


# What is refused, and by which function: of `refusals.py` where the place is not named.
EARLY = [
    ("engine.cluster=auto privacy=[{name='secagg'}]", "the keys of 'secagg' stay in one process", "check_cluster"),
    ("drift={kind='concept', at=50}", "drift.at = 50", "drifting_rows.check_drift"),
    ("guard={} algorithm.name=gossip", "has no server that could judge a model", "guard.check_guard"),
    ("observe.roles=['successor:1']", "passes no model from client to client", "views.check_role"),
    ("observe.roles=['server'] algorithm.name=local_only", "is a baseline", "views.check_observed"),
    (
        "model.loss={name='cross_entropy', fake=true} algorithm.name=scaffold",
        "fake: not with 'scaffold' in this version",
        "attackers.check_fake",
    ),
    ("algorithm={name='fedavgg'}", "did you mean 'fedavg'", "registry.find"),
    ("algorithm={name='fedprox', nu=1}", "algorithm.nu", "registry.arguments"),
    ("algorithm={name='fedprox', mu=-1.0}", "algorithm.mu = -1.0", "registry.arguments"),
    ("algorithm={name='fedavg', mu=1.0}", "algorithms with it: .*fedprox", "resolution.make_algorithm"),
    ("algorithm={name='hwfedavg', weights='equal'}", "sets its own weights", "resolution.make_algorithm"),
    ("algorithm.name=scaffold local.momentum=0.5", "only with 0.0; remove the key", "resolution.apply_fixes"),
    ("algorithm.name=gossip compression.name=topk", "send to each other", "transform.make_transform"),
    ("compression.name=topkk", "did you mean 'topk'", "registry.find"),
    ("compression={name='topk', share=2.0}", "compression.share", "registry.arguments"),
    ("model.name=mlpp", "did you mean 'mlp'", "registry.find"),
    ("partition.name=idd", "did you mean 'iid'", "registry.find"),
    ("engine.device=cuda", "torch sees no GPU", "device.find_device"),
    ("engine.plan=native", "no C compiler", "check_engine"),
    ("models=[{name='mlp', share=0.5}, {name='logistic', share=0.5}]", "one architecture for all", "check_model"),
    (
        "algorithm={name='ifca', clusters=2} model.init=m.safetensors",
        "different models, so it cannot use one",
        "check_model",
    ),
    ("algorithm={name='fedprox', mu=100.0}", "diverges from", "check_keys"),
    ("model.loss={name='mse', form='ova'}", "has no form", "losses.check_form"),
    ("model.hiden=[3]", "did you mean 'model.hidden'", "config.builder_arguments"),
    ("model.hidden=[3, 0]", "its value number 2 is 0, expected a number of 1 or more", "registry.arguments"),
    ("model={name='logistic', norm='batch'}", "has no 'norm'", "config.builder_arguments"),
    ("model.init=nowhere.safetensors", "there is no file 'nowhere.safetensors'", "initial.bytes_of"),
    ("algorithm.name=moon model.bn=local", "compares its outputs", "batch_norm.local_norms"),
    ("algorithm.name=ditto model.bn=recalibrate", "use personal models", "resolution.with_batch_norm"),
    ("algorithm.name=ifca model.bn=local", "one global model", "resolution.with_batch_norm"),
    ("data={augment='crop_flip', scale='client'}", "pads with black", "check_augment"),
    ("model.norm=batch local.batch_size=1", "a variance of one row", "check_single_rows"),
    ("partition.majorty=0.5", "did you mean 'partition.majority'", "registry.arguments"),
    ("partition.majority=1.5", "above 0 and at most 1", "common.check_keys"),
    ("partition={name='shards', shards=0}", "at least one shard", "common.check_keys"),
    ("partition={name='dirichlet', alpha=-1.0}", "alpha = -1: it must lie between", "common.check_range"),
    ("partition={name='feature_skew', rotate=[0.0, 400.0]}", "rotate = 400", "common.check_range"),
    ("partition={name='iid', clients=0}", "at least one client", "common.check_some"),
    ("partition.name=flwr:VerticalSizePartitioner", "flwr", "flower.partitioner_of"),
    ("cohort.size=13", "there are 12 clients; ask for at most 12", "check_cohort"),
    (
        "algorithm.name=feddf models=[{name='mlp', share=0.999}, {name='logistic', share=0.001}]",
        "of 12 clients is less than one client",
        "config.dealt",
    ),
    ("algorithm={name='gossip', graph='torus'} partition.clients=7", "torus", "graphs.torus"),
    ("privacy.secag={}", "did you mean 'secagg'", "mechanism_choice.mechanisms_of"),
    ("privacy.secagg={} privacy.paillier={}", "both hide updates", "mechanism_choice.check_pairs"),
    ("privacy.secagg={} algorithm.name=cfl", "looks at each client's model", "mechanism_choice.check_algorithm"),
    ("privacy.secagg={} evaluation.drift=true", "looks at each client's model", "privacy_refusals.check_protection"),
    ("data.constants=nowhere.json", "there is no such file", "constants.read_constants"),
    ("data={constants='c.json', scale='none'}", "remove one of the keys", "config._settled_once"),
    ("data.test=rows.csv", "only tables and files take a test file", "config._known_keys"),
    ("tracking.name=wandb", 'pip install "fedatlas', "tracking.check_tracking"),
    ("data.lmit=3", "did you mean 'data.limit'", "config.options"),
]


def words(given: str) -> Iterator[str]:
    """``a=1 b={c=2, d=3}`` -> its overrides; a blank inside braces divides none."""
    depth, word = 0, ""
    for letter in f"{given} ":
        depth += (letter in "{[") - (letter in "}]")
        if letter == " " and not depth:
            yield word
            word = ""
        else:
            word += letter


@pytest.mark.parametrize(("given", "said", "place"), EARLY, ids=[f"{place}-{given}" for given, _, place in EARLY])
def test_it_is_refused_before_the_data_are_read(
    given: str, said: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "find_compiler", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("fedatlas.config.tracking.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=said) as error:
        set_up(config.read(None, list(words(given))), 1)
    frames = [f"{Path(f.filename).stem}.{f.name}" for f in traceback.extract_tb(error.value.__traceback__)]
    assert (place if "." in place else f"refusals.{place}") in frames
    with pytest.raises(ConfigError, match=said):
        dry_run(config.read(None, list(words(given))))


def test_every_early_refusal_is_tried() -> None:
    """Whoever adds one to `check` adds its line above."""
    tree = ast.parse(inspect.getsource(refusals.check))
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(refusals, node.func.id)
    }
    tried = {place.rpartition(".")[2] for _, _, place in EARLY} | {"check_network"}  # of one's own: below
    inner = {"check_builder": "builder_arguments", "check_split": "check_keys", "check_batches": "check_single_rows"}
    assert {inner.get(name, name) for name in called} <= tried


def test_own_networks_are_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config.read(None, ["algorithm={name='ifca', clusters=2}"])
    with pytest.raises(ConfigError, match="a custom network"):
        set_up(given, 1, nn.Linear(64, 10))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    for keys, said in (
        (["algorithm.name=moon"], "works on features, but the model Sequential needs a method 'features'"),
        (["privacy.local_dp={epsilon=8, clip=1}"], "batch norm in the model: not under 'local_dp'"),
        (["local.batch_size=1"], "batch norm cannot compute a variance of one row"),
    ):
        with pytest.raises(ConfigError, match=said):
            set_up(config.read(None, keys), 1, normed)
    monkeypatch.setitem(PLUGINS["algorithms"], "odd", lambda: "no record")
    with pytest.raises(ConfigError, match="returned str, not an Algorithm"):
        set_up(config.read(None, ["algorithm.name=odd"]), 1)


def test_what_is_resolved_resolves_to_itself() -> None:
    """So that a run folder's configuration can be compared with one as it was written."""
    for given in (
        (),
        ("algorithm.name=scaffold",),
        ("algorithm.name=fedmd",),
        ("compression.name=topk",),
        ("privacy.paillier.encrypt=output", "privacy.local_dp={epsilon=8, clip=1}"),
        ("model.name=cnn1", "partition={name='dirichlet', alpha=0.3}"),
        ("cohort.size=3", "algorithm.name=fedseq", "seeds=[1, 2]"),
        ("algorithm.name=feddf", "models=[{name='mlp', share=0.5}, {name='logistic', share=0.5}]"),
    ):
        once = resolve(config.read(None, given))
        again = resolve(config.parse(once.config.plain()))
        assert isinstance(once.algorithm, Algorithm)
        assert again.config.plain() == once.config.plain()
        assert again.config.hash() == once.config.hash()
    assert resolve(config.read(None)).algorithm.name == fedavg().name
    with pytest.raises(FedatlasError):
        resolve(config.read(None, ["algorithm={name='fedprox', nu=1}"]))


def owned(path: Path, rows: dict[str, int]) -> list[str]:
    """The overrides of a run of a table in which each owner has so many rows for training."""
    lines = ["a,owner,y", *(f"{i},{name},{'no yes'.split()[i % 2]}" for name, n in rows.items() for i in range(n))]
    path.write_text("\n".join(lines) + "\n")
    path.with_name("test.csv").write_text("a,owner,y\n1,North,yes\n2,North,no\n")
    data = f"data={{name='file', path='{path}', label='y', client='owner', test='{path.with_name('test.csv')}'}}"
    return [data, "partition={name='natural'}", "model.norm=batch"]


@pytest.mark.parametrize(
    ("rows", "size", "said"),
    [
        (
            {"East": 1, "North": 40, "South": 9, "West": 1},
            8,
            (
                r"one row, and client 0 \('East'\) and 1 more cannot make a batch of more: leave out clients with a single "
                r"training row, or use a network without batch norm, such as norm = 'group'"
            ),
        ),
        ({"East": 1, "North": 40}, 0, r"client 0 \('East'\) cannot make a batch of more"),
        (
            {"East": 9, "North": 40},
            8,
            r"a last batch of one row, at client 0 \('East'\), has no variance for batch norm: local\.batch_size = 7 leaves",
        ),
    ],
)
def test_a_row_alone_under_batch_norm_is_told_by_its_owner(
    tmp_path: Path, rows: dict[str, int], size: int, said: str
) -> None:
    given = [*owned(tmp_path / "rows.csv", rows), f"local.batch_size={size}"]
    with pytest.raises(ConfigError, match=said):
        set_up(config.read(None, given), 1)
    if "batch_size = 7" in said:
        set_up(config.read(None, [*given, "local.batch_size=7"]), 1)
        set_up(config.read(None, [*given, "local.last_batch=merge"]), 1)
