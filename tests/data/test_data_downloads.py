"""Downloads: checked, prepared, recorded and not repeated, from a real web server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import threading
from functools import partial

import numpy as np
import pytest

from fedatlas.data import store as stores
from fedatlas.data.download import RECORDS, Remote, obtain
from fedatlas.data.store import Store, provenance, read_json, read_npz, read_prepared, write_npz
from fedatlas.errors import DataError


@pytest.fixture
def server(tmp_path):
    """A real web server on this machine, serving one folder."""
    root = tmp_path / "web"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield root, f"http://127.0.0.1:{web.server_address[1]}/"
        web.shutdown()
        thread.join()


def keep(originals, home) -> None:
    write_npz(home / "toy.npz", x=np.frombuffer(originals["toy.bin"].read_bytes(), np.uint8))


def test_a_download_is_checked_prepared_recorded_and_not_repeated(server, tmp_path):
    root, base = server
    (root / "toy.bin").write_bytes(b"\1\2\3")
    store = Store((tmp_path / "home",))
    digest = hashlib.md5(b"\1\2\3", usedforsecurity=False).hexdigest()
    remote = Remote(base + "toy.bin", "toy.bin", f"md5:{digest}", "this test")
    found = obtain(store, "toy", ["toy.npz"], [remote], keep)
    assert read_npz(found.paths[0], ["x"])["x"].tolist() == [1, 2, 3]
    assert not list((tmp_path / "home" / "originals").iterdir())
    record = read_json(tmp_path / "home" / RECORDS)[base + "toy.bin"]
    assert record == {
        "file": "toy.bin",
        "sha256": hashlib.sha256(b"\1\2\3").hexdigest(),
        "verified": True,
        "cited": "this test",
    }
    (root / "toy.bin").unlink()
    assert obtain(store, "toy", ["toy.npz"], [remote], keep) == found


def test_a_large_prepared_file_is_unpacked_once(monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "LARGE", 100)
    monkeypatch.setattr(stores, "cache", lambda what: tmp_path / "cache" / what)
    path, x = tmp_path / "toy.npz", np.arange(1000)
    write_npz(path, x=x, y=-x)
    with pytest.raises(DataError, match="no array 'z': it holds x, y"):
        read_prepared(path, ["z"])
    assert not (tmp_path / "cache").exists()
    assert (read_prepared(path, ["x"])["x"] == x).all()
    (copy,) = (tmp_path / "cache" / "unpacked").iterdir()
    assert copy.stem == hashlib.sha256(path.read_bytes()).hexdigest()
    np.savez(copy, x=x, y=np.zeros(1))  # to see that it is the copy which is read, other arrays included
    assert read_prepared(path, ["y"])["y"].tolist() == [0]
    copy.write_bytes(copy.read_bytes()[:-100])  # cut short: unpacked again
    assert (read_prepared(path, ["y"])["y"] == -x).all()
    assert (read_npz(copy, ["y"])["y"] == -x).all()
    (tmp_path / "cache" / "unpacked").rename(tmp_path / "elsewhere")
    (tmp_path / "cache" / "unpacked").touch()  # no copy can be written: nothing is lost but time
    assert (read_prepared(path, ["x"])["x"] == x).all()


def test_a_download_with_another_checksum_is_refused(server, tmp_path):
    root, base = server
    (root / "toy.bin").write_bytes(b"\1\2\3")
    remote = Remote(base + "toy.bin", "toy.bin", "md5:" + "0" * 32, "the authors' page")
    with pytest.raises(DataError, match=r"checksum differs from that of the authors' page\.$"):
        obtain(Store((tmp_path / "home",)), "toy", ["toy.npz"], [remote], keep)


def test_without_a_published_checksum_the_first_download_counts(server, tmp_path):
    root, base = server
    (root / "toy.bin").write_bytes(b"\1\2\3")
    store, remote = Store((tmp_path / "home",)), Remote(base + "toy.bin", "toy.bin")
    obtain(store, "toy", ["toy.npz"], [remote], keep)
    assert read_json(tmp_path / "home" / RECORDS)[remote.url]["verified"] is False
    (tmp_path / "home" / "toy.npz").unlink()
    (root / "toy.bin").write_bytes(b"\1\2\4")
    with pytest.raises(DataError, match="differs from that of the first download"):
        obtain(store, "toy", ["toy.npz"], [remote], keep)


def test_absent_and_out_of_reach_is_one_sentence(server, tmp_path):
    _, base = server
    store = Store((tmp_path / "a", tmp_path / "b"))
    with pytest.raises(DataError) as error:
        obtain(store, "toy", ["toy.npz"], [Remote(base + "gone.bin", "gone.bin")], keep)
    text = str(error.value)
    for part in ("'toy'", "toy.npz", str(tmp_path / "a"), str(tmp_path / "b"), "gone.bin", "FEDATLAS_DATA"):
        assert part in text
    assert "\n" not in text


def test_a_read_only_folder_is_not_written_to(tmp_path):
    (tmp_path / "shared").mkdir(mode=0o555)
    store = Store((tmp_path / "shared", tmp_path / "cache"))
    assert store.home() == tmp_path / "cache"


def test_an_altered_prepared_file_is_refused_by_the_list_of_sums(tmp_path):
    write_npz(tmp_path / "toy.npz", x=np.arange(3))
    digest = hashlib.sha256((tmp_path / "toy.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  toy.npz\n")
    found = Store((tmp_path,)).find(["toy.npz"])
    assert provenance(found) == [{"file": "toy.npz", "sha256": digest, "listed": True}]
    write_npz(tmp_path / "toy.npz", x=np.arange(4))
    with pytest.raises(DataError, match="altered or cut short"):
        provenance(found)
