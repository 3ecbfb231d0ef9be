"""A study on a local Ray node ends with the table of one machine, and leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedatlas.cluster.nodes import Nodes, listed_nodes
from fedatlas.errors import ConfigError
from local_cluster import LocalCluster, begun, gone, scratch
from test_study import AVG, NODES, SCHEME
from test_study_runs import SECRET, WILD, rows_of, study, told

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedatlas[cluster]'")
SOURCE = str(Path(__file__).parents[2] / "src")


def test_a_study_on_a_node_with_two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also a diverged and a masked run, of which no process and no folder is left."""
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    here, there, lines = tmp_path / "here.sqlite", tmp_path / "there.sqlite", list[str]()
    small = study(factor=[{**NODES, "levels": [4]}, {**SCHEME, "level": [AVG, SECRET, WILD]}])
    assert small.run(table=here)
    with LocalCluster(cores=2) as cluster:
        pids = set[int]()
        assert small.run(table=there, cluster=cluster.address, say=lambda line: note(line, lines, pids, cluster))
        assert len(pids) >= 2
        assert not list(scratch(cluster))
        assert gone(sorted(pids))
        [node] = listed_nodes(cluster.address)
    assert told(here) == told(there)
    assert rows_of(here) == rows_of(there)
    assert lines[0].endswith("has 2 cores; 1 in all")
    assert any(", 1 in hand on 1 node, about " in line for line in lines)
    assert node.cores == 2
    assert 0 < node.memory < 1 << 50


def note(line: str, lines: list[str], pids: set[int], cluster: LocalCluster) -> None:
    lines.append(line)
    pids |= begun(cluster)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:9", "there is no Ray cluster at '127.0.0.1:9': start one with 'ray start --head"),
        ("nonsense", "there is no Ray cluster at 'nonsense'"),
        ("ray://127.0.0.1:9", "run the command on a machine of the cluster"),
    ],
)
def test_without_a_cluster_a_sentence_says_what_to_do(address: str, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        Nodes.connect(address, "study", b"")


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[cluster\]" on every node'):
        Nodes.connect("auto", "study", b"")
