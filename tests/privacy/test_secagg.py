"""Secure aggregation: section 15's vectors, sums that open exactly whoever leaves, what a party refuses, what secrets show."""

from __future__ import annotations

import inspect
import itertools
import os
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedatlas.errors import ConfigError, PrivacyError, ProtocolError
from fedatlas.privacy.secagg import client, keys, masks, messages, server, session
from fedatlas.secret import random_bytes
from fedatlas.wire import codec
from secagg_sessions import HEAD, PHASES, RUN, crossed, drawn, hold, parties, plain

pytestmark = pytest.mark.timing

# Masks


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize("d", [0, 1, 5, masks.BLOCK // 4 + 3])
def test_masks_are_the_streams_of_aes_in_counter_mode(kind: Any, d: int) -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    names = [os.urandom(32) for _ in range(3)]
    width = np.dtype(kind).itemsize
    second = modes.CTR(bytes(15) + b"\x02")
    streams = [
        np.frombuffer(Cipher(algorithms.AES(name), second).encryptor().update(bytes(d * width)), kind) for name in names
    ]
    x = np.arange(d, dtype=kind)
    assert np.array_equal(masks.added(x, names[:2], names[2:]), x + streams[0] + streams[1] - streams[2])
    assert np.array_equal(x, np.arange(d, dtype=kind))


@pytest.mark.parametrize("ring", [32, 64])
def test_what_one_client_sends_is_uniform(ring: int) -> None:
    """Zeros in, uniform bytes out; two parts of one session, and the same part of two sessions, share no stream."""
    zeros = np.zeros(60_000, messages.UNSIGNED[ring])
    words = {k: {"x": zeros, "y": zeros} for k in range(3)}
    first, second = hold(words), hold(words)
    assert not first.sums["x"].any()
    sent = [seen.up["masked"][k]["masked"][part] for seen in (first, second) for k in range(3) for part in "xy"]
    for row in sent:
        counts = np.bincount(row.numpy().view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    for one, other in itertools.combinations(sent, 2):
        assert int((one == other).sum()) < 5
        assert abs(np.corrcoef(one.numpy().astype(float), other.numpy().astype(float))[0, 1]) < 0.03


def test_a_masked_input_is_the_formula_of_the_paper() -> None:
    """y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv), each key worked out from the standards' functions alone.

    The keys of pairs are made with what all were told.
    """
    import hashlib
    import json

    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    words = drawn(16, 4, 11)
    cohort = tuple(words)
    gave: dict[int, list[bytes]] = {who: [] for who in cohort}
    asked = iter(range(12))

    def source(n: int) -> bytes:
        out = os.urandom(n)
        if n == 32:  # the first twelve draws of 32 bytes: channel key, mask key and seed of each client
            gave[cohort[next(asked) // 3]].append(out)
        return out

    seen = hold(words, source=source)
    tag = keys.tag_of(keys.place_of(*RUN, cohort))
    bound = hashlib.sha256(b"head" + tag + HEAD.digest()).digest()

    def stream(secret: bytes, *purpose: object) -> Any:
        info = (bound if purpose[0] == "pair" else tag) + json.dumps(purpose).encode()
        key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)
        text = Cipher(algorithms.AES256(key), modes.CTR(bytes(15) + b"\x02")).encryptor().update(bytes(44))
        return np.frombuffer(text, np.uint32)

    for u, who in enumerate(cohort):
        y = words[who]["x"] + stream(gave[who][2], "self", u, "x")
        for v, other in enumerate(cohort):
            if u != v:
                public = X25519PrivateKey.from_private_bytes(gave[other][1]).public_key().public_bytes_raw()
                shared = X25519PrivateKey.from_private_bytes(gave[who][1]).exchange(
                    X25519PublicKey.from_public_bytes(public)
                )
                pair = stream(shared, "pair", min(u, v), max(u, v), "x")
                y = y + pair if v > u else y - pair
        assert np.array_equal(seen.up["masked"][who]["masked"]["x"].numpy().view(np.uint32), y)


# Sessions


@settings(max_examples=25)
@given(st.data())
def test_the_opened_sum_is_the_plain_sum_of_the_survivors(data: st.DataObject) -> None:
    """Over clients, words, rings, and who leaves in which phase, as long as the threshold is left."""
    m, d = data.draw(st.integers(3, 9)), data.draw(st.integers(0, 40))
    words = drawn(data.draw(st.integers(0, 99)), m, d, data.draw(st.sampled_from([32, 64])))
    least = max(keys.threshold_of(m), 3)
    going = data.draw(st.lists(st.sampled_from(sorted(words)), max_size=m - least, unique=True))
    leave: dict[str, list[int]] = {}
    for who in going:
        leave.setdefault(data.draw(st.sampled_from(PHASES)), []).append(who)
    seen = hold(words, leave)
    late = {*leave.get("agree", ()), *leave.get("unmask", ())}
    assert seen.survivors == [k for k in words if k not in {*going} - late]
    assert np.array_equal(seen.sums["x"], plain(words, seen.survivors))
    assert not any(seen.refused.values())


def test_a_session_with_drop_outs_in_every_phase_and_several_parts() -> None:
    words = drawn(1, 13, 7)
    for k, parts in words.items():
        parts["rows"] = np.array([k], np.uint64)
    leave = {"keys": [1], "shares": [7], "masked": [10, 37]}
    seen = hold(words, leave)
    assert seen.survivors == [k for k in words if k not in {1, 7, 10, 37}]
    assert int(seen.sums["rows"][0]) == sum(seen.survivors)
    assert np.array_equal(seen.sums["x"], plain(words, seen.survivors))


@pytest.mark.parametrize("phase", PHASES)
def test_below_the_threshold_nothing_is_opened(phase: str) -> None:
    words = drawn(2, 7, 3)  # t = floor(14 / 3) + 1 = 5
    hold(words, {phase: [1, 4]})
    with pytest.raises(PrivacyError, match=r"only 4 of the 7 clients asked .* 5 are needed"):
        hold(words, {phase: [1, 4, 7]})


def test_fewer_than_three_survivors_are_no_sum() -> None:
    words = drawn(3, 3, 3)
    assert keys.threshold_of(3, 0.6) == 2
    with pytest.raises(PrivacyError, match="3 are needed"):
        hold(words, {"masked": [1]}, threshold=0.6)
    with pytest.raises(ProtocolError, match="3 to 100 clients, not of 2"):
        hold(drawn(3, 2, 3))
    with pytest.raises(ProtocolError, match="not of 101"):
        keys.place_of(*RUN, tuple(range(101)))


def test_thresholds() -> None:
    assert [keys.threshold_of(m) for m in (3, 4, 6, 8, 9, 99, 100)] == [3, 3, 5, 6, 7, 67, 67]
    assert [keys.threshold_of(10, share) for share in (0.51, 0.9, 1)] == [6, 10, 10]
    for share in (0.5, 1.01, float("nan")):
        with pytest.raises(ConfigError, match=r"above 0\.5"):
            keys.threshold_of(10, share)
    # Two statements need 2 t signatures; m honest or not sign one, the dishonest both (tests/hostile/test_consistency.py).
    assert [keys.tolerated(m, keys.threshold_of(m)) for m in (10, 50, 100)] == [3, 17, 33]
    for m, t in [(100, 67), (10, 6), (3, 3), (9, 7)]:
        c = keys.tolerated(m, t)
        assert 2 * t > m + c
        assert 2 * t <= m + c + 1 or m - c == 2


def test_the_widths_of_messages_tell_nothing() -> None:
    """All clients of a phase are told and send as many bytes, whoever is gone."""
    words = drawn(4, 6, 50)
    widths: dict[str, set[tuple[int, int]]] = {}
    for seen in (hold(words), hold(words, {"shares": [4]})):
        for phase, replies in seen.up.items():
            found = {(codec.size(seen.down[phase][who]), codec.size(reply)) for who, reply in replies.items()}
            widths.setdefault(phase, set()).update(found)
    assert [len(found) for found in widths.values()] == [1] * len(PHASES)


# Secrets


def test_secrets_show_nothing_and_are_not_written() -> None:
    party = parties((0, 1, 2))[1]
    place = keys.place_of(*RUN, (0, 1, 2))
    _, state = client.advertise(messages.told(place), party)
    secrets = [party.private, state.channel, state.mask, state.seed]
    shown = f"{state} {state!r} {party} {secrets} {state.seed} {state._asdict()}"
    for secret in secrets:
        assert len(secret) == 32
        assert bytes(secret).hex() not in shown
        assert repr(bytes(secret)) not in shown
        with pytest.raises(PrivacyError, match="never written"):
            pickle.dumps(secret)
        with pytest.raises(PrivacyError, match="never written"):
            pickle.dumps(state)
    with pytest.raises(Exception, match="tensors and plain values"):
        codec.encode({"session": secrets[0]})


def test_every_draw_comes_from_the_source_and_no_secret_crosses() -> None:
    """A generator that keeps what it gave: no message holds a draw, and after a session the parties hold none of their own."""
    gave: list[bytes] = []

    def source(n: int) -> bytes:
        gave.append(os.urandom(n))
        return gave[-1]

    words = drawn(14, 4, 9)
    seen = hold(words, {"masked": [10]}, source=source)
    # Two keys and a seed each, two polynomials of degree t - 1 = 2 each, a nonce for each envelope.
    assert sorted(map(len, gave)) == [12] * 12 + [32] * 12 + [49] * 16
    crossing = b"".join(
        bytes(codec.encode(value)) for side in (seen.down, seen.up) for each in side.values() for value in each.values()
    )
    for drawing in gave:
        assert (drawing in crossing) == (len(drawing) == 12)
    for who in seen.survivors:
        assert seen.sessions[who].held == {}
        assert not seen.sessions[who].seed + seen.sessions[who].mask + seen.sessions[who].channel


def test_the_default_source_is_the_operating_systems() -> None:
    drawing = [client.advertise, client.share, keys.drawn, keys.identity]
    assert all(inspect.signature(function).parameters["source"].default is random_bytes for function in drawing)


def test_a_session_crosses_to_another_process_of_its_party() -> None:
    words = drawn(15, 4, 3)
    cohort = tuple(words)
    party = parties(cohort)
    place = keys.place_of(*RUN, cohort)
    told = messages.told(place)
    replies = {k: client.advertise(told, party[k]) for k in cohort}
    each, _, _ = server.keys_heard(place, [(k, r) for k, (r, _) in replies.items()], party[1].public)
    _, state = client.share(each[4], replies[4][1], party[4])
    again = session.restored(crossed(session.carried(state)))
    assert again == state
    assert isinstance(again.seed, keys.Secret)
    done = state._replace(channel=keys.Secret(), mask=keys.Secret(), seed=keys.Secret(), held={}, done="unmask")
    done = done._replace(head=bytes(range(32)), pulls=((0.0, 2.0), ()), survivors=(0, 2), fewest=4)
    assert session.restored(crossed(session.carried(done))) == done


def test_without_cryptography_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r'pip install "fedatlas\[he\]"'):
        client.advertise({}, parties((0, 1, 2))[0])
