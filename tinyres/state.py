"""Training state in one `.npz` file: arrays as arrays, everything else as JSON, no pickle."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from tinyres import expect
from tinyres.arrays import Array
from tinyres.tensor import Tensor

FORMAT = "tinyres 1"
PLAIN = (bool, int, float, str, type(None))


def save(path: str | os.PathLike[str], /, **state: Any) -> Path:
    """Write nested dicts, lists and tuples of arrays, numbers, strings and random generators.

    The file is written aside, flushed and then renamed: if that is interrupted, or the disk is
    full, what stood at `path` before is whole. Anything else than the above is a TypeError that
    names it.

    >>> import pathlib, tempfile
    >>> where = pathlib.Path(tempfile.mkdtemp(), "run.npz")
    >>> save(where, step=3, model={"w": np.ones(2)}).name, load(where)["step"]
    ('run.npz', 3)
    """
    path = _as_path("save", path)
    arrays: dict[str, Any] = {}
    tree = {"format": FORMAT, "state": _packed(state, "state", arrays)}
    arrays["tree"] = np.array(json.dumps(tree))
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        # In memory first: a ZipFile whose own file fails under it complains once more when it is
        # collected.
        archive = io.BytesIO()
        np.savez(archive, **arrays)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(aside, "xb") as file:
                _write(file, archive.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"save: could not write {path}, which is as it was: {error.strerror or error}",
        ) from error
    return path


def _write(file: Any, data: Any) -> None:
    file.write(data)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` wrote. Nothing in the file is executed.

    A file that is no such state, is cut off, was changed or comes from a newer version is a
    ValueError that says so; a file that can't be opened is the system's OSError.
    """
    path = _as_path("load", path)
    # NumPy leaves a file open that it opened and could not read, so it is opened here.
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                if not isinstance(archive, np.lib.npyio.NpzFile) or "tree" not in archive.files:
                    raise ValueError("it was not written by tr.save")
                tree = json.loads(str(archive["tree"]))
                if tree["format"] != FORMAT:
                    raise ValueError(
                        f"its format is {tree['format']!r}, this version reads {FORMAT!r}"
                    )
                arrays = {name: archive[name] for name in archive.files}
            state = _unpacked(tree["state"], arrays)
            if not isinstance(state, dict):
                raise ValueError(f"it holds a {type(state).__name__} where a dict must be")
            return state
        # Bytes that somebody else wrote can make any part of the reading fail, in any way.
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"load: {path} is not a whole tinyres state: {reason}") from error


def _as_path(what: str, path: Any) -> Path:
    # Not a file descriptor, which open() would take as well.
    return Path(expect.instance(f"{what}: path", path, (str, os.PathLike), "a string or a Path"))


def _packed(value: Any, where: str, arrays: dict[str, Array]) -> Any:
    """`value` as JSON, with its arrays moved to `arrays`; each part says what kind it is."""
    if isinstance(value, PLAIN) and not isinstance(value, np.generic):  # np.float64 is a float
        return {"plain": value}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        array = value.data if isinstance(value, Tensor) else np.asarray(value)
        if array.dtype.kind not in "biufSU":
            raise TypeError(f"save: {where} is an array of {array.dtype}, which can't be saved")
        name = f"a{len(arrays)}"
        arrays[name] = array
        return {"scalar" if isinstance(value, np.generic) else "array": name}
    if isinstance(value, np.random.Generator):
        return {
            "generator": json.loads(
                json.dumps(value.bit_generator.state, default=np.ndarray.tolist)
            )
        }
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"save: {where} has the key {key!r}: keys must be strings")
        return {"dict": {k: _packed(v, f"{where}[{k!r}]", arrays) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        parts = [_packed(v, f"{where}[{i}]", arrays) for i, v in enumerate(value)]
        return {type(value).__name__ if type(value) in (list, tuple) else "list": parts}
    raise TypeError(f"save: {where} is a {type(value).__name__}, which can't be saved")


def _unpacked(part: Any, arrays: dict[str, Array]) -> Any:
    ((kind, value),) = part.items()
    if kind == "plain":
        return value
    if kind in ("array", "scalar"):
        if value not in arrays:
            raise ValueError(f"its array {value} is missing")
        return arrays[value] if kind == "array" else arrays[value][()]
    if kind == "dict":
        return {k: _unpacked(v, arrays) for k, v in value.items()}
    if kind in ("list", "tuple"):
        parts = [_unpacked(v, arrays) for v in value]
        return parts if kind == "list" else tuple(parts)
    if kind == "generator":
        bits = {"PCG64": np.random.PCG64, "PCG64DXSM": np.random.PCG64DXSM,
                "MT19937": np.random.MT19937, "Philox": np.random.Philox,
                "SFC64": np.random.SFC64}[value["bit_generator"]]()  # fmt: skip
        bits.state = value
        return np.random.Generator(bits)
    raise ValueError(f"it has a part of the unknown kind {kind!r}")
