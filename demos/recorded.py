"""What is compared of the same training in two frameworks, how far it differs, what was recorded.

A `Results` has for each row of the table the arrays that it is about, by name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

RECORDED = Path(__file__).parent / "data" / "same_as_pytorch.npz"
KEYS = "bias of the keys"
ROWS = ("logits", "gradients", "losses", "weights", f"gradients, {KEYS}", f"weights, {KEYS}")
Arrays = dict[str, np.ndarray]
Results = dict[str, Arrays]


def results(logits: np.ndarray, gradients: Arrays, losses: list[float], weights: Arrays) -> Results:
    """The rows of the table, with the biases of the keys apart from all others."""
    rows: Results = {"logits": {"logits": logits}, "losses": {"losses": np.array(losses)}}
    for row, arrays in (("gradients", gradients), ("weights", weights)):
        rows[row], rows[f"{row}, {KEYS}"] = {}, {}
        for name, array in arrays.items():
            if name.endswith("in_proj_bias"):
                query, key, value = np.split(array, 3)
                array = np.concatenate([query, value])
                rows[f"{row}, {KEYS}"][name] = key
            rows[row][name] = array
    return rows


def table(columns: dict[str, dict[str, str]]) -> str:
    """Rows by name, one column a run."""
    names = list(next(iter(columns.values())))
    width = max(map(len, names))
    lines = [" " * width + "".join(f"{head:>18}" for head in columns)]
    lines += [
        f"{name:<{width}}" + "".join(f"{column[name]:>18}" for column in columns.values())
        for name in names
    ]
    return "\n".join(lines)


def sample(rows: Results) -> Results:
    """16 evenly spaced numbers of each array: what is recorded."""

    def some(array: np.ndarray) -> np.ndarray:
        return array.reshape(-1)[np.linspace(0, array.size - 1, 16).astype(int)]

    return {row: {name: some(a) for name, a in arrays.items()} for row, arrays in rows.items()}


def differences(one: Results, other: Results) -> dict[str, float]:
    """The largest |a - b| / max|b| of each row; the keys' biases are measured by the queries'."""
    found = {}
    for row in ROWS:
        scale = other[row.split(",")[0]] if row.endswith(KEYS) else other[row]
        found[row] = max(
            float(np.abs(one[row][name] - b).max() / np.abs(scale[name]).max())
            for name, b in other[row].items()
        )
    return found


def save(recorded: dict[str, tuple[Results, float]], version: str) -> None:
    """Write what PyTorch computed: for each run one matrix a row, 16 numbers an array."""
    arrays = {"version": np.array(version)}
    for run, (rows, milliseconds) in recorded.items():
        arrays[f"{run}/time"] = np.array(milliseconds)
        for row, sampled in sample(rows).items():
            arrays[f"{run}/{row}"] = np.array([sampled[name] for name in sorted(sampled)])
    RECORDED.parent.mkdir(exist_ok=True)
    np.savez_compressed(RECORDED, **arrays)


def load(run: str, like: Results) -> tuple[Results, float]:
    """What `save` wrote of a run; the names are those of our results."""
    with np.load(RECORDED) as file:
        rows = {
            row: dict(zip(sorted(arrays), file[f"{run}/{row}"], strict=True))
            for row, arrays in like.items()
        }
        return rows, float(file[f"{run}/time"])


def version() -> str:
    """Of the PyTorch whose values were recorded."""
    with np.load(RECORDED) as file:
        return str(file["version"])
