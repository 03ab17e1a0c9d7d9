"""Training state in one `.npz` file: arrays as arrays, everything else as JSON, no pickle."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tinyres.arrays import Array
from tinyres.tensor import Tensor

FORMAT = "tinyres 1"
PLAIN = (bool, int, float, str, type(None))


def save(path: str | os.PathLike[str], /, **state: Any) -> Path:
    """Write nested dicts, lists and tuples of arrays, numbers, strings and random generators.

    The file is written aside, flushed and then renamed: if that is interrupted, what stood at
    `path` before is whole. Anything else than the above is a TypeError that names it.

    >>> import pathlib, tempfile
    >>> where = pathlib.Path(tempfile.mkdtemp(), "run.npz")
    >>> save(where, step=3, model={"w": np.ones(2)}).name, load(where)["step"]
    ('run.npz', 3)
    """
    path = Path(path)
    arrays: dict[str, Array] = {}
    tree = {"format": FORMAT, "state": _packed(state, "state", arrays)}
    arrays["tree"] = np.array(json.dumps(tree))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return path


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` wrote. Nothing in the file is executed.

    A file that is no such state, is cut off or comes from a newer version is a ValueError that
    says so.
    """
    try:
        # NumPy leaves a file open that it opened and could not read, so it is opened here.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        tree = json.loads(str(arrays["tree"]))
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']!r}, this version reads {FORMAT!r}")
        return _unpacked(tree["state"], arrays)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"load: {path} is not a whole tinyres state: {error}") from error


def _packed(value: Any, where: str, arrays: dict[str, Array]) -> Any:
    """`value` as JSON, with its arrays moved to `arrays`; each part says what kind it is."""
    if isinstance(value, PLAIN):
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
