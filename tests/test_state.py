"""Saved training state: whole or refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tinyres as tr

STATE = {
    "arrays": {"f4": np.ones((2, 3), "f4"), "f8": np.arange(3.0), "i": np.arange(2)},
    "bools": np.array([True, False]),
    "no dimensions": np.array(2.5),
    "empty": [np.zeros((0, 4)), [], {}, (), ""],
    "plain": [1, -2.5, "text", None, True, False, float("inf"), 2**70],
    "scalars": [np.float32(0.1), np.float64(0.1), np.int64(3), np.bool_(True)],
    "nested": ({"a": [1, (2, {"b": 3})]},),
    "strings": np.array(["ab", "c"]),
}  # fmt: skip


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, np.ndarray | np.generic):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.array_equal(one, other)
    else:
        assert one == other


def test_state_goes_round(tmp_path):
    path = tr.save(tmp_path / "new" / "state.npz", **STATE)
    assert_same(tr.load(path), STATE)
    assert_same(tr.load(str(path)), STATE)
    assert [p.name for p in path.parent.iterdir()] == ["state.npz"]


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_generator_goes_on_where_it_was(kind, tmp_path):
    rng = np.random.Generator(getattr(np.random, kind)(3))
    rng.normal(size=5)
    other = tr.load(tr.save(tmp_path / "s.npz", rng=rng))["rng"]
    assert np.array_equal(rng.normal(size=9), other.normal(size=9))
    assert np.array_equal(rng.integers(9, size=9), other.integers(9, size=9))


def test_a_tensor_is_saved_as_its_array(tmp_path):
    model = tr.nn.Linear(2, 2, rng=0)
    state = tr.load(tr.save(tmp_path / "s.npz", model=model.state_dict(), t=model.weight))
    assert np.array_equal(state["t"], model.weight.data)
    model.load_state_dict(state["model"])


@pytest.mark.parametrize(
    "value, message",
    [
        (lambda: 0, r"state\['x'\] is a function"),
        ({1: 2}, r"state\['x'\] has the key 1"),
        (np.array([None]), r"state\['x'\] is an array of object"),
        ([{"y": {1, 2}}], r"state\['x'\]\[0\]\['y'\] is a set"),
    ],
)
def test_what_is_refused_leaves_the_file_as_it_was(value, message, tmp_path):
    path = tr.save(tmp_path / "s.npz", x=1)
    with pytest.raises(TypeError, match=message):
        tr.save(path, x=value)
    assert tr.load(path) == {"x": 1} and len(list(tmp_path.iterdir())) == 1


def test_the_file_may_be_read_by_others(tmp_path):
    (tmp_path / "plain").touch()
    path = tr.save(tmp_path / "s.npz", x=1)
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


HOSTILE = ["file", "allow_pickle", "path", "self", "tree", "a0", "a/b", "../../etc/passwd", "x\0y",
           "", " ", "array", "dict", "\ud800", "é", "__class__", "*", "x" * 5000]  # fmt: skip


def test_no_name_and_no_text_is_special(tmp_path):
    state = {name: {name: np.full(2, i), "text": name} for i, name in enumerate(HOSTILE)}
    path = tr.save(tmp_path / "s.npz", **state)
    assert_same(tr.load(path), state)
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


# ---------------------------------------------------------------- writing that fails


def error_of(kind, code):
    def fail(*args, **kwargs):
        raise kind(code, os.strerror(code))

    return fail


FAILURES = {
    "full while writing": ("numpy.savez", error_of(OSError, errno.ENOSPC), "No space left"),
    "full while flushing": ("os.fsync", error_of(OSError, errno.ENOSPC), "No space left"),
    "no renaming": ("os.replace", error_of(PermissionError, errno.EACCES), "Permission denied"),
    "read-only": ("pathlib.Path.mkdir", error_of(OSError, errno.EROFS), "Read-only file system"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failed_write_says_so_and_leaves_the_file_as_it_was(how, tmp_path, monkeypatch):
    path = tr.save(tmp_path / "s.npz", x=1)
    where, fail, reason = FAILURES[how]
    with monkeypatch.context() as patch:
        patch.setattr(where, fail)
        with pytest.raises(OSError, match=rf"save: could not write .*s\.npz, .*: {reason}"):
            tr.save(path, x=2)
    assert tr.load(path) == {"x": 1} and len(list(tmp_path.iterdir())) == 1


def test_an_interrupt_while_writing_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tr.save(tmp_path / "s.npz", x=1)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.fsync", interrupted)
        tr.save(path, x=2)
    assert tr.load(path) == {"x": 1} and len(list(tmp_path.iterdir())) == 1


def test_a_disk_that_is_really_full(tmp_path):
    """The system refuses to let a file of this process grow beyond 10 kB."""
    code = """
import resource, sys, numpy as np, tinyres as tr
tr.save(sys.argv[1], x=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
tr.save(sys.argv[1], x=np.zeros(10_000))
"""
    path = tmp_path / "s.npz"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert "OSError: [Errno 27] save: could not write" in done.stderr, done.stderr
    assert tr.load(path) == {"x": 1} and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("path", [None, 3, b"x", ["x"]], ids=repr)
def test_what_is_no_path(path):
    with pytest.raises(TypeError, match="save: path must be"):
        tr.save(path, x=1)
    with pytest.raises(TypeError, match="load: path must be"):
        tr.load(path)


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "s.npz").mkdir()
    with pytest.raises(OSError, match=r"save: could not write .*s\.npz"):
        tr.save(tmp_path / "s.npz", x=1)
    with pytest.raises(OSError, match=r"s\.npz"):
        tr.load(tmp_path / "s.npz")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="save: could not write"):
        tr.save(tmp_path / "file" / "s.npz", x=1)
    with pytest.raises(FileNotFoundError, match="missing"):
        tr.load(tmp_path / "missing.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "s.npz"]


# ---------------------------------------------------------------- files that are not what they seem


def tree(text, **arrays):
    def write(path):
        np.savez(path, tree=np.array(text), **arrays)

    return write


def part(value, **arrays):
    return tree(json.dumps({"format": "tinyres 1", "state": value}), **arrays)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def compressed(path):
    tr.save(path, x=1)
    with zipfile.ZipFile(path) as archive:
        content = archive.read("tree.npy")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tree.npy", content)
    spoiled = bytearray(path.read_bytes())
    spoiled[60:80] = b"\xff" * 20
    path.write_bytes(spoiled)


def one_array(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


FOREIGN = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello"),
    "zip of nothing": lambda path: zipfile.ZipFile(path, "w").close(),
    "one array": one_array,
    "other arrays": lambda path: np.savez(path, a=np.ones(2)),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Bomb())),
    "pickle inside": tree([Bomb()]),
    "pickle beside": part({"dict": {}}, a0=np.array([Bomb()], object)),
    "newer": tree('{"format": "tinyres 99", "state": {}}'),
    "no JSON": tree("{"),
    "JSON of another kind": tree("[1, 2]"),
    "no format": tree("{}"),
    "no state": tree('{"format": "tinyres 1"}'),
    "deep": tree('{"format": "tinyres 1", "state": ' + '{"list": [' * 5000 + "]}" * 5000 + "}"),
    "unknown kind": part({"code": "1 + 1"}),
    "two kinds": part({"plain": 1, "list": []}),
    "no kind": part(3),
    "missing array": part({"dict": {"x": {"array": "a7"}}}),
    "array of no name": part({"dict": {"x": {"array": ["a7"]}}}),
    "unknown generator": part({"generator": {"bit_generator": "os.system", "state": 1}}),
    "generator with a wrong state": part({"generator": {"bit_generator": "PCG64", "state": 1}}),
    "list at the top": part({"list": []}),
    "compressed and spoiled": compressed,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_state_is_refused_and_not_executed(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "given.npz"
    FOREIGN[what](path)
    with pytest.raises(ValueError, match=r"^load: .*given\.npz is not a whole tinyres state: .+"):
        tr.load(path)
    assert [p.name for p in tmp_path.iterdir()] == ["given.npz"]


def test_a_newer_version_is_named(tmp_path):
    FOREIGN["newer"](tmp_path / "s.npz")
    with pytest.raises(ValueError, match="format is 'tinyres 99', this version reads 'tinyres 1'"):
        tr.load(tmp_path / "s.npz")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tr.save(tmp_path_factory.mktemp("state") / "s.npz", **SMALL)
    return path.read_bytes()


SMALL = {"x": np.arange(40.0), "n": 3, "rng": [1, {"name": "text"}]}


def test_a_file_cut_off_anywhere_is_refused(written, tmp_path):
    path = tmp_path / "s.npz"
    for length in range(0, len(written), 7):
        path.write_bytes(written[:length])
        with pytest.raises(ValueError, match="not a whole tinyres state"):
            tr.load(path)


def test_a_byte_flipped_anywhere_is_refused_or_without_effect(written, tmp_path):
    path = tmp_path / "s.npz"
    refused = 0
    for where in range(0, len(written), 3):
        path.write_bytes(written[:where] + bytes([written[where] ^ 0xFF]) + written[where + 1 :])
        try:
            state = tr.load(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert_same(state, SMALL)
    assert refused > len(written) / 4


def test_threads_that_save_to_one_path_leave_one_whole_file(tmp_path):
    path = tmp_path / "s.npz"

    def save(i):
        for _ in range(5):
            tr.save(path, x=np.full(1000, i))
            assert len(set(tr.load(path)["x"].tolist())) == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    assert len(list(tmp_path.iterdir())) == 1
