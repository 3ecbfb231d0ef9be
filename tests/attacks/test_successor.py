"""The successor in a chain (G8): its view, both models that it takes for its predecessor's start, one target against others, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedatlas
from fedatlas import ConfigError, Experiment, attack, resume, run
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.membership import candidates_of, membership
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.shadow_models import by_gradient
from fedatlas.attacks.successor import among
from fedatlas.auditing.verdict import tried_of
from fedatlas.config import parse
from fedatlas.leakage.attacker_folder import attacker_folder
from fedatlas.leakage.attacker_process import carry_out
from fedatlas.leakage.handed_models import holds_model, last_received, newest_handed, received, truly_begun
from fedatlas.record.observed import RoleView, ViewFrame
from fedatlas.setup.assembly import set_up
from fedatlas.setup.refusals import checked
from fedatlas.setup.truth import truth_of
from fedatlas.tree import Tree

CLIENTS, OF = 6, 2
CHAIN: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "limit": 120},
    "partition": {"name": "iid", "clients": CLIENTS},
    "model": {"name": "logistic"},
    "local": {"steps": 1, "batch_size": 16},
    "algorithm": {"name": "fedseq", "phi": "random", "group_size": 3},
}
ROLES = [f"successor:{OF}", f"predecessor:{OF}"]


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.leakage.attacker_folder.work_apart", carry_out)


def observed(path: Path, roles: list[str], **more: Any) -> Path:
    given = {**CHAIN, **more, "observe": {"roles": roles, "rounds": [0, 0]}}
    return run(Experiment.of(**given), out=path, baselines=False).path


def told(path: Path, client: int) -> list[ViewFrame]:
    """All models that a client was told, in order, from its own view."""
    view = RoleView(path, ViewRole("client", client))
    frames = [frame for number in view.rounds for frame in view.frames(number) if holds_model(frame)]
    return [frame for frame in frames if frame.client == client]


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def views(path: Path) -> tuple[RoleView, RoleView]:
    successor, predecessor = (RoleView(path, ViewRole.parse(role, "role")) for role in ROLES)
    return successor, predecessor


@pytest.mark.parametrize("more", [{}, {"anchor": "server", "rule": {"name": "fedprox"}}, {"passes": 2}])
def test_both_starts_are_the_models_that_clients_were_told(tmp_path: Path, more: dict[str, Any]) -> None:
    """The truth is read from the clients' own views: of client 2 (a), and of the client that came after it (b)."""
    everybody = [f"client:{k}" for k in range(CLIENTS)]
    path = observed(tmp_path / "run", [*ROLES, *everybody], algorithm={**CHAIN["algorithm"], **more})
    successor, predecessor = views(path)
    frames = {k: told(path, k) for k in range(CLIENTS)}
    hops = sorted((one.ask[1], one.ask[3], k) for k in frames for one in frames[k] if one.sender == OF)

    def at(k: int, place: tuple[int, int]) -> int:
        return next(i for i, one in enumerate(frames[k]) if (one.ask[1], one.ask[3]) == place)

    def before(k: int, place: tuple[int, int]) -> list[ViewFrame]:
        return [one for one in frames[k] if (one.ask[1], one.ask[3]) < place]

    *place, receiver = hops[0]
    found = truly_begun(successor, predecessor)
    assert same(found.before, received(successor, before(OF, (place[0], place[1]))[-1]))
    assert same(found.after, received(successor, frames[receiver][at(receiver, (place[0], place[1]))]))
    assert not same(found.before, found.after)

    first = {k: (number, ask) for number, ask, k in reversed(hops)}  # since when a client is part of the view
    number, ask, receiver = next(
        hop for hop in hops if any(first[hop[2]] <= (one.ask[1], one.ask[3]) for one in before(hop[2], hop[:2]))
    )
    stale = last_received(successor)
    assert same(stale.before, received(successor, before(receiver, (number, ask))[-1]))
    assert same(stale.after, received(successor, frames[receiver][at(receiver, (number, ask))]))
    number, ask, receiver = hops[-1]
    newest = received(successor, frames[receiver][at(receiver, (number, ask))])
    assert same(Tree(newest_handed(successor)), newest)


def test_masks_of_sums_hide_no_model_inside_a_chain(tmp_path: Path) -> None:
    """With and without `secagg` the successor has the same models, but for the rounding of the sums of earlier rounds."""
    hops = [
        truly_begun(*views(observed(tmp_path / name, ROLES, rounds=2, **more)))
        for name, more in (("plain", {}), ("masked", {"privacy": [{"name": "secagg"}]}))
    ]
    for one, other in zip(hops[0].after.items(), hops[1].after.items(), strict=True):
        torch.testing.assert_close(one[1], other[1], atol=1e-3, rtol=1e-2)


def test_a_run_that_is_continued_records_the_same_successors(tmp_path: Path) -> None:
    whole = observed(tmp_path / "whole", ROLES)
    parts = observed(tmp_path / "parts", ROLES, rounds=2)
    resume(parts, ["rounds=4"])
    for one, other in zip(views(whole), views(parts), strict=True):
        assert one.rounds == other.rounds
        for number in one.rounds:
            kept = [(frame.client, frame.sender, frame.direction, frame.bytes) for frame in one.frames(number)]
            assert kept == [(x.client, x.sender, x.direction, x.bytes) for x in other.frames(number)]


ONE_ROW: dict[str, Any] = {
    **CHAIN,
    "data": {"name": "digits", "limit": 60, "scale": "federated"},
    "partition": {"name": "iid", "clients": 60},
    "model": {"name": "lenet_sigmoid"},
    "local": {"steps": 1, "lr": 0.1},
    "algorithm": {"name": "fedseq", "phi": "random", "group_size": 2},
}


@pytest.mark.slow
def test_a_successor_that_knows_the_start_sees_the_picture_and_an_audit_says_so(tmp_path: Path) -> None:
    """One step on one row: with the true start the picture comes back, with an older model it does not."""
    path = observed(tmp_path / "run", ROLES, **ONE_ROW)
    keys = {"role": ROLES[0], "iterations": 100, "restarts": 2}
    leak = attack(path, "idlg", **keys)["leaks"]["psnr"]
    assert leak["low"] > 20
    stale = attack(path, "idlg", **keys, start="last")
    assert stale["keys"]["start"] == "last"
    assert stale["leaks"]["psnr"]["value"] < 10 < leak["value"]
    (said,) = [one for one in fedatlas.audit(path).record["attacks"] if one["attack"] == "idlg"]
    assert (said["role"], said["targets"]) == (ROLES[0], 1)
    assert said["p"] < 0.05


def test_labels_of_a_predecessor_are_counted(tmp_path: Path) -> None:
    """One step on all rows of clients with unlike classes: its counts come out, and those of 47 others do not."""
    unlike = {
        "data": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 48, "alpha": 0.5},
        "model": {"hidden": [16]},
        "local": {"steps": 1, "batch_size": 0, "lr": 0.1},
        "attack": [{"name": "label_inference", "role": f"successor:{OF}"}],
    }
    path = run(Experiment.of(**{**CHAIN, **unlike}), out=tmp_path / "run", baselines=False).path
    found = attack(path, "label_inference")
    assert found["targets"] == 1
    assert found["metrics"]["overlap"]["value"] > 0.8 > found["metrics"]["overlap"]["placebo"]
    assert found["leaks"]["overlap"]["low"] > 0
    assert found["leaks"]["overlap"]["others"] == 47
    assert "told by the client before" in found["declaration"]["knowledge"]
    for start, given in (("last", {"successor-2"}), ("true", {"successor-2", "predecessor-2"})):
        with attacker_folder(path, VIEW_ATTACKS["label_inference"](role=ROLES[0], start=start), 1) as folder:
            assert {one.name for one in (folder / "observed").iterdir() if one.is_dir()} == given


def test_only_rows_of_the_predecessor_are_in_its_game() -> None:
    """Scores that are right for rows of client 2 and wrong for those of all others: an AUC of 1 for its successor."""
    whole = checked(parse({**CHAIN, "data": {"name": "digits", "limit": 600}, "evaluation": {"clients": 0.5}}))
    truth = truth_of(set_up(whole))
    game = candidates_of(truth)
    for k in range(CLIENTS):
        rows = torch.cat([truth.rows(k).x, truth.kept(k).x]).flatten(1)
        mine = game.x[game.client == k].flatten(1)
        assert len(mine)
        assert (torch.cdist(mine.double(), rows.double()).min(1).values < 1e-6).all()
    score = np.where(game.client == OF, game.member, ~game.member).astype(np.float64)
    own = membership(role=f"successor:{OF}").score(truth, {"score": score})
    assert own.metrics["auc"]["value"] == 1
    assert own.targets == int((game.client == OF).sum())
    everybody = membership().score(truth, {"score": score}).metrics["auc"]["value"]
    assert everybody is not None
    assert everybody < 0.5


def test_the_norm_of_a_gradient_is_that_of_a_linear_model() -> None:
    """|p - y| times the length of the row with its 1 for the bias."""
    torch.manual_seed(1)
    model, x, y = nn.Linear(5, 3), torch.randn(20, 5), torch.randint(3, (20,))
    far = torch.softmax(model(x), 1) - nn.functional.one_hot(y, 3)
    norm = far.norm(dim=1) * torch.cat([x, torch.ones(20, 1)], 1).norm(dim=1)
    torch.testing.assert_close(by_gradient(model, x, y).float(), -norm.detach())


def test_one_target_is_claimed_as_rarely_by_chance_as_its_interval_says() -> None:
    """Of figures that come from the same law as the others' few are beyond, of any shape; a high one is, and few others show nothing."""
    rng = np.random.default_rng(1)
    for draw in (rng.standard_normal, rng.exponential):
        low = [among(float(x[0]), x[1:])["low"] for x in (draw(size=60) for _ in range(4000))]
        assert 0.01 < np.mean([x is not None and x > 0 for x in low]) <= 0.025 + 0.006
    others = rng.standard_normal(99)
    found = among(5.0, others)
    assert found["low"] == pytest.approx(5 - np.sort(others)[-2])
    assert found["high"] == pytest.approx(5 - np.sort(others)[1])
    shown = [among(float(found["smallest"]) + x, others)["low"] for x in rng.standard_normal(500)]  # type: ignore[arg-type]
    assert 0.72 < np.mean([x is not None and x > 0 for x in shown]) < 0.88
    few = among(5.0, others[:38])
    assert (few["low"], few["smallest"]) == (None, None)
    record: dict[str, Any] = {"name": "dlg", "role": "successor:2", "targets": 1, "metrics": {}}
    assert tried_of({**record, "leaks": {"psnr": found}}, "psnr", "PSNR").p < 1e-4
    assert tried_of({**record, "leaks": {"psnr": few}}, "psnr", "PSNR").p == 1


def test_an_audit_claims_no_leak_of_one_row_whose_label_a_tenth_of_others_share() -> None:
    """The figure of one row is 0 or 1, far from normal: a guess is right for one client in ten, and its rank says that this is chance."""
    by_chance = among(1.0, np.array([1.0] * 10 + [0.0] * 90))
    record = {"name": "label_inference", "role": "successor:2", "targets": 1, "metrics": {}}
    one = tried_of({**record, "leaks": {"overlap": by_chance}}, "overlap", "share")
    assert by_chance["low"] == 0
    assert one.p == 1
    assert (one.smallest(1) or 0) > 0.9  # more than any guess can gain


FEDAVG = {"algorithm": {"name": "fedavg"}}
REFUSED = [
    (
        {**FEDAVG, "attack": [{"name": "dlg", "role": "successor:1"}]},
        "passes no model from client to client; use 'fedseq'",
    ),
    ({"observe": {"roles": ["predecessor:9"]}}, "the clients are 0 to 5"),
    ({"attack": [{"name": "dlg", "start": "last"}]}, r"start is for role = 'successor:3'"),
    (
        {"attack": [{"name": "property", "role": "successor:1"}]},
        "'property' cannot work with this view; name one of server",
    ),
    ({"attack": [{"name": "dlg", "role": "predecessor:1"}]}, "'dlg' cannot work with this view"),
    (
        {**ONE_ROW, "rounds": 1, "attack": [{"name": "dlg", "role": "successor:1", "start": "last"}]},
        "compares with a model received before: set rounds = 2",
    ),
]


@pytest.mark.parametrize(("tables", "words"), REFUSED, ids=[words[:25] for _, words in REFUSED])
def test_what_a_successor_cannot_see_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked(parse({**CHAIN, **tables}))


def test_a_view_that_lacks_the_start_or_a_hop_says_what_to_add(tmp_path: Path) -> None:
    path = observed(tmp_path / "run", ROLES[:1], rounds=1)
    with pytest.raises(ConfigError, match=r'Add roles = \["predecessor:2"\] under \[observe\]'):
        attack(path, "label_inference", role=ROLES[0])
    with pytest.raises(ConfigError, match="had received a model before: record more rounds, or set start = 'true'"):
        attack(path, "label_inference", role=ROLES[0], start="last")
