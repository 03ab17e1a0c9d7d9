"""Is this really what PyTorch does? The same weights and batches in both, and what differs.

A small language model is written twice: with tinyres, and with PyTorch's own
nn.TransformerEncoder. Both get the same weights, and take 50 steps of Adam on the same batches.
The table shows the largest difference between the two, of the logits, of every gradient and of
every weight after the last step, relative to the largest number of the same array.

In float64 both agree to a dozen digits: it is the same mathematics. In float32 they add numbers in
another order, and rounding differs in the last digit; 50 steps make more of it. One row stands
apart: the bias of the keys adds the same to all scores of a query, which changes nothing, so its
gradient is 0 but for rounding. Adam divides a gradient by its own size, and so makes whole steps of
what is rounding only. The model does not notice.

Without PyTorch, tinyres is compared with what PyTorch computed when the values in demos/data were
recorded: 16 numbers of each array. For times that can be compared, give each one thread:
OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python -m demos.same_as_pytorch
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from tinyres import interop

RECORDED = Path(__file__).parent / "data" / "same_as_pytorch.npz"
VOCAB, CONTEXT, BATCH, D_MODEL, HEADS, D_FF, BLOCKS = 32, 32, 8, 32, 4, 128, 4
STEPS, LR = 50, 1e-3
PLACEMENTS = {"pre": "Pre-LN", "post": "Post-LN"}
DTYPES = ("float64", "float32")
KEYS = "bias of the keys"
# What is compared: for each of these an array by name, or several.
ROWS = ("logits", "gradients", "losses", "weights", f"gradients, {KEYS}", f"weights, {KEYS}")
Arrays = dict[str, np.ndarray]
Results = dict[str, Arrays]


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Uniform between -1 and 1, from raw bits, which no version of NumPy changes."""
    bits = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return (bits / 2.0**63 - 1).reshape(shape)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences that count upwards, each from another start in steps of another size."""
    start, stride = (np.abs(numbers(1000 + step, 2, BATCH, 1)) * VOCAB).astype(int)
    tokens = (start + (1 + stride % 5) * np.arange(CONTEXT + 1)) % VOCAB
    return tokens[:, :-1], tokens[:, 1:]


# ---------------------------------------------------------------- tinyres


def our_model(placement: str, dtype: str) -> tr.nn.TransformerLM:
    """The model with weights of the size that Xavier's rule gives them."""
    model = tr.nn.TransformerLM(
        VOCAB, D_MODEL, HEADS, BLOCKS, CONTEXT, D_FF, placement=placement, activation="gelu_exact"
    )
    model.astype(dtype)
    for i, (name, p) in enumerate(model.named_parameters()):
        size = (6 / sum(p.shape)) ** 0.5 if p.ndim == 2 else 0.1
        p.data = numbers(i, *p.shape) * size + name.endswith("gamma")
    return model


def by_their_names(model: tr.nn.TransformerLM, of: Any) -> Arrays:
    """The parameters (or what `of` gives for each) under the names of the PyTorch model."""
    encoder = interop.to_torch_encoder(model.stack, of)
    return {
        "token.weight": of(model.token.weight).copy(),
        "position.weight": of(model.position.weight).copy(),
        **{f"encoder.{name}": array for name, array in encoder.items()},
        "head.weight": of(model.head.weight).T.copy(),
        "head.bias": of(model.head.bias).copy(),
    }


def ours(placement: str, dtype: str) -> tuple[Results, float]:
    """What is compared, and milliseconds a step."""
    model = our_model(placement, dtype)
    optimizer = tr.optim.Adam(model.parameters(), LR)
    tokens, targets = batch(0)
    logits = model(tokens)
    tr.cross_entropy(logits, targets).backward()
    gradients = by_their_names(model, lambda p: p.grad)
    losses, times = [], []
    for step in range(STEPS):
        start = time.perf_counter()
        model.zero_grad()
        loss = model.loss(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    weights = by_their_names(model, lambda p: p.data)
    return results(logits.data, gradients, losses, weights), 1e3 * float(np.median(times))


# ---------------------------------------------------------------- PyTorch


def their_model(torch: Any, placement: str, dtype: str) -> Any:
    """The same model of PyTorch's own parts, with the weights of ours."""
    nn = torch.nn

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = nn.Embedding(VOCAB, D_MODEL), nn.Embedding(CONTEXT, D_MODEL)
            pre = placement == "pre"
            layer = nn.TransformerEncoderLayer(
                D_MODEL, HEADS, D_FF, 0.0, "gelu", batch_first=True, norm_first=pre
            )
            norm = nn.LayerNorm(D_MODEL) if pre else None
            self.encoder = nn.TransformerEncoder(layer, BLOCKS, norm, enable_nested_tensor=False)
            self.head = nn.Linear(D_MODEL, VOCAB)

        def forward(self, tokens: Any) -> Any:
            x = self.token(tokens) + self.position.weight
            mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, dtype=x.dtype)
            return self.head(self.encoder(x, mask, is_causal=True))

    model = LanguageModel().to(getattr(torch, dtype))
    state = by_their_names(our_model(placement, dtype), lambda p: p.data)
    model.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return model


def theirs(torch: Any, placement: str, dtype: str) -> tuple[Results, float]:
    """What is compared, and milliseconds a step."""
    model = their_model(torch, placement, dtype)
    optimizer = torch.optim.Adam(model.parameters(), LR)

    def loss_of(tokens: np.ndarray, targets: np.ndarray) -> tuple[Any, Any]:
        logits = model(torch.tensor(tokens))
        flat = torch.tensor(targets).flatten()
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), flat)

    logits, loss = loss_of(*batch(0))
    loss.backward()
    gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    losses, times = [], []
    for step in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        _, loss = loss_of(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    rows = results(logits.detach().numpy(), gradients, losses, weights)
    return rows, 1e3 * float(np.median(times))


# ---------------------------------------------------------------- what is compared


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


# ---------------------------------------------------------------- the table


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m demos.same_as_pytorch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", action="store_true", help="record the values of PyTorch anew")
    args = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        torch = None
    if args.record and torch is None:
        parser.error("--record needs PyTorch: pip install torch")
    recorded: dict[str, tuple[Results, float]] = {}
    columns: dict[str, dict[str, str]] = {}
    for placement, title in PLACEMENTS.items():
        for dtype in DTYPES:
            run = f"{placement} {dtype}"
            mine, my_time = ours(placement, dtype)
            if torch is None:
                mine = sample(mine)
                other, their_time = load(run, mine)
            else:
                other, their_time = recorded[run] = theirs(torch, placement, dtype)
            columns[f"{title} {dtype}"] = {
                **{row: f"{d:.1e}" for row, d in differences(mine, other).items()},
                "tinyres, ms a step": f"{my_time:.1f}",
                "PyTorch, ms a step": f"{their_time:.1f}",
            }
    if torch is None:
        with np.load(RECORDED) as file:
            source = f"PyTorch {file['version']} as recorded, on the machine that recorded it"
    else:
        source = f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
    print(f"{BLOCKS} blocks of width {D_MODEL}, batches of {BATCH} x {CONTEXT}, {STEPS} steps of "
          f"Adam.\nLargest differences between tinyres and {source}:\n")  # fmt: skip
    print(table(columns))
    if args.record:
        save(recorded, torch.__version__)
        print(f"\nrecorded in {RECORDED}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
