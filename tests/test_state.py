"""Saved training state: whole or refused."""

from __future__ import annotations

import numpy as np
import pytest

import tinyres as tr

STATE = {
    "arrays": {"f4": np.ones((2, 3), "f4"), "f8": np.arange(3.0), "i": np.arange(2)},
    "bools": np.array([True, False]),
    "no dimensions": np.array(2.5),
    "empty": [np.zeros((0, 4)), [], {}, (), ""],
    "plain": [1, -2.5, "text", None, True, False, float("inf"), 2**70],
    "scalars": [np.float32(0.1), np.int64(3), np.bool_(True)],
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


def test_an_interrupted_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tr.save(tmp_path / "s.npz", x=1)

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        tr.save(path, x=2)
    assert tr.load(path) == {"x": 1} and len(list(tmp_path.iterdir())) == 1


def test_what_is_no_whole_state(tmp_path):
    whole = tr.save(tmp_path / "whole.npz", x=np.ones(1000)).read_bytes()
    np.savez(tmp_path / "other.npz", a=np.ones(2))
    np.savez(tmp_path / "pickled.npz", tree=np.array([{"format": "tinyres 1"}]))
    files = {
        "cut": whole[:-100], "half": whole[: len(whole) // 2], "empty": b"", "text": b"hello",
        "flipped": whole[:300] + bytes([whole[300] ^ 255]) + whole[301:],
        "newer": None, "other": None, "pickled": None,
    }  # fmt: skip
    newer = '{"format": "tinyres 99", "state": {}}'
    np.savez(tmp_path / "newer.npz", tree=np.array(newer))
    for name, content in files.items():
        path = tmp_path / f"{name}.npz"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=f"load: .*{name}.npz is not a whole tinyres state"):
            tr.load(path)
    with pytest.raises(FileNotFoundError):
        tr.load(tmp_path / "missing.npz")
