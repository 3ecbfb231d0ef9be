"""Points in place of ids: the two groups, their maps, and what is refused as a point."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedatlas.errors import ProtocolError
from fedatlas.vertical import elligator, psi

GROUPS = ("ristretto255", "x25519")


def as_points(*rows):
    return torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 32).copy())


def number(value):
    return value.to_bytes(32, "little")


@pytest.mark.parametrize("group", GROUPS)
def test_two_exponents_commute_and_one_point_is_one_id(group):
    a, b = psi.exponent(group), psi.exponent(group)
    points = psi.hashed(["7", "007", "x"], group)
    ab, ba = (psi.raised(psi.raised(points, one, group), other, group) for one, other in ((a, b), (b, a)))
    assert torch.equal(ab, ba)
    assert len(set(psi.points_of(points).tolist())) == 3
    assert torch.equal(points, psi.hashed(["7", "007", "x"], group))


def test_ids_are_mapped_as_rfc_9496_maps_its_test_vectors():
    rbcl = psi.ristretto()
    for text, point in (  # appendix A.3: the hash is SHA-512 there
        (
            "Ristretto is traditionally a short shot of espresso coffee",
            "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46",
        ),
        (
            "made with the normal amount of ground coffee but extracted with",
            "f26e5b6f7d362d2d2a94c5d0e7602cb4773c95a2e5c31a64f133189fa76ed61b",
        ),
    ):
        assert rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(text.encode()).digest()).hex() == point
    own = hashlib.blake2b(b"7", digest_size=64, key=psi.DOMAIN).digest()
    assert psi.hashed(["7"], "ristretto255").numpy().tobytes() == rbcl.crypto_core_ristretto255_from_hash(own)


def eightfold(u):
    """x coordinate of 8 times a point of curve25519, by doubling it three times."""
    p, j = elligator.P, elligator.J
    for _ in range(3):
        u = (u * u - 1) ** 2 * pow(4 * u * (u * u + j * u + 1), -1, p) % p
    return u


def test_coordinates_are_those_of_another_implementation_of_the_map():
    """libsodium's map to ed25519 is Elligator 2, times 8, in the other form of the curve."""
    for i in range(50):
        uniform = hashlib.sha256(b"%d" % i).digest()[:31] + b"\1"
        mapped = psi.sodium().crypto_core_ed25519_from_uniform(uniform)
        y = int.from_bytes(mapped, "little") % 2**255
        own = int.from_bytes(elligator.coordinate(uniform + bytes(32)), "little")
        assert eightfold(own) == (1 + y) * pow(1 - y, -1, elligator.P) % elligator.P


def test_no_id_is_mapped_to_the_twist():
    """On which curve a coordinate lies survives every exponent, so it would show a bit of each masked id."""
    p, j = elligator.P, elligator.J
    points = psi.hashed([str(i) for i in range(200)], "x25519")
    points = torch.cat([points, psi.raised(points, psi.exponent("x25519"), "x25519")])
    for row in points.numpy():
        s = int.from_bytes(row.tobytes(), "little")
        assert pow(s**3 + j * s * s + s, (p - 1) // 2, p) == 1


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_no_set_of_points_is_refused(group):
    good = psi.hashed(["7", "8"], group)
    for bad in (torch.zeros(1, 32, dtype=torch.uint8), good[:, :31], good.double(), good[0], "points", None):
        with pytest.raises(ProtocolError):
            psi.raised(bad, psi.exponent(group), group)
    with pytest.raises(ProtocolError, match="occurs twice"):
        psi.raised(torch.cat([good, good[1:]]), psi.exponent(group), group)


NO_POINTS = {  # RFC 9496, appendix A.2, and further bytes that no honest party sends
    "neutral element": number(0),
    "not canonical": number(2**255 - 19 + 1),
    "highest bit": number(2**255 + 2),
    "negative": number(1),
    "all ones": b"\xff" * 32,
    "no square": bytes.fromhex("26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371"),
}


@pytest.mark.parametrize("kind", NO_POINTS)
def test_bytes_that_encode_no_point_are_refused(kind):
    good = psi.hashed(["7"], "ristretto255").numpy().tobytes()
    with pytest.raises(ProtocolError, match="not a point of the group"):
        psi.raised(as_points(good, NO_POINTS[kind]), psi.exponent("ristretto255"), "ristretto255")


def test_coordinates_of_small_order_are_refused():
    for u in (0, 1, elligator.P - 1, 325606250916557431795983626356110631294008115727848805560023387167927233504):
        with pytest.raises(ProtocolError, match="not a point of the group"):
            psi.raised(as_points(number(u)), psi.exponent("x25519"), "x25519")


@pytest.mark.parametrize("group", GROUPS)
def test_threads_change_nothing_and_every_point_is_counted(monkeypatch, group):
    monkeypatch.setattr(psi, "STRETCH", 3)
    ids, key, heard = [str(i) for i in range(10)], psi.exponent(group), []
    points = psi.hashed(ids, group)
    once = psi.raised(points, key, group, 2, heard.append)
    assert torch.equal(once, psi.raised(points, key, group, 1))
    assert torch.equal(once, psi.masked(ids, key, group, 2, heard.append))
    assert heard == [3, 3, 3, 1] * 2
    assert psi.hashed([], group).shape == (0, 32)


def test_members_are_found_as_by_comparing_all_pairs():
    numbers = np.random.default_rng(3)
    rows = numbers.integers(0, 2, (40, 32)).astype(np.uint8)  # few values, zeros at the ends
    rows[:, 2:] = 0
    points = psi.points_of(torch.from_numpy(rows))
    others = psi.points_of(torch.from_numpy(rows[:3].copy()))
    assert psi.among(points, others).tolist() == [any((one == row).all() for row in rows[:3]) for one in rows]


def test_an_order_is_a_permutation_and_another_one_each_time():
    assert sorted(psi.shuffle(1000)) == list(range(1000))
    assert not np.array_equal(psi.shuffle(1000), psi.shuffle(1000))
    assert psi.shuffle(0).shape == (0,)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a loaded library")
def test_loading_the_group_leaves_no_file_behind(tmp_path):
    code = "from fedatlas.vertical import psi; psi.hashed(['7'], 'ristretto255')"
    env = {"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=600)
    assert not list(tmp_path.iterdir())
