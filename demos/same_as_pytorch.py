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

import itertools
import time
from typing import Any

import numpy as np

import tinyres as tr
from demos import command, recorded
from demos.recorded import Arrays, Results
from demos.report import BOTH
from tinyres import interop

SIZES = dict(vocab=32, d_model=32, heads=4, blocks=4, context=32, d_ff=128)
BATCH, STEPS, LR = 8, 50, 1e-3
DTYPES = ("float64", "float32")


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Uniform between -1 and 1, from raw bits, which no version of NumPy changes."""
    bits = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return (bits / 2.0**63 - 1).reshape(shape)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences that count upwards, each from another start in steps of another size."""
    start, stride = (np.abs(numbers(1000 + step, 2, BATCH, 1)) * SIZES["vocab"]).astype(int)
    tokens = (start + (1 + stride % 5) * np.arange(SIZES["context"] + 1)) % SIZES["vocab"]
    return tokens[:, :-1], tokens[:, 1:]


def make(placement: str, dtype: str) -> tr.nn.TransformerLM:
    """The model with weights of the size that Xavier's rule gives them."""
    model = tr.nn.TransformerLM(**SIZES, placement=placement, activation="gelu_exact")
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


def train(model: tr.nn.TransformerLM, batches: list[Any], lr: float) -> tuple[Results, float]:
    """A step of Adam on each batch: what is compared, and milliseconds a step."""
    optimizer = tr.optim.Adam(model.parameters(), lr)
    tokens, targets = batches[0]
    logits = model(tokens)
    tr.cross_entropy(logits, targets).backward()
    gradients = by_their_names(model, lambda p: p.grad)
    losses, times = [], []
    for batch in batches:
        start = time.perf_counter()
        model.zero_grad()
        loss = model.loss(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    weights = by_their_names(model, lambda p: p.data)
    return recorded.results(logits.data, gradients, losses, weights), 1e3 * float(np.median(times))


def both(placement: str, dtype: str, torch: Any) -> tuple[Results, Results, list[float]]:
    """The results of tinyres and those of PyTorch, and the milliseconds a step of each."""
    model, batches = make(placement, dtype), [batch(step) for step in range(STEPS)]
    state = by_their_names(model, lambda p: p.data)
    ours, our_time = train(model, batches, LR)
    if torch is None:
        ours = recorded.sample(ours)
        theirs, their_time = recorded.load(f"{placement} {dtype}", ours)
    else:
        from demos import in_pytorch

        twin = in_pytorch.make(SIZES, placement == "pre", state)
        theirs, their_time = in_pytorch.train(twin, batches, LR)
    return ours, theirs, [our_time, their_time]


def main(argv: list[str] | None = None) -> int:
    known = command.parser("same_as_pytorch", __doc__)
    known.add_argument("--record", action="store_true", help="record the values of PyTorch anew")
    args = known.parse_args(argv)
    try:
        import torch
    except ImportError:
        torch = None
    if args.record and torch is None:
        known.error("--record needs PyTorch: pip install torch")
    columns, measured = {}, {}
    for placement, dtype in itertools.product(BOTH, DTYPES):
        ours, theirs, times = both(placement, dtype, torch)
        measured[f"{placement} {dtype}"] = theirs, times[1]
        columns[f"{BOTH[placement]} {dtype}"] = {
            **{row: f"{d:.1e}" for row, d in recorded.differences(ours, theirs).items()},
            **{f"{name}, ms a step": f"{t:.1f}" for name, t in zip(("tinyres", "PyTorch"), times)},
        }
    if torch is None:
        source = f"PyTorch {recorded.version()} as recorded, on the machine that recorded it"
    else:
        source = f"PyTorch {torch.__version__} (threads: {torch.get_num_threads()})"
    print(f"{SIZES['blocks']} blocks of width {SIZES['d_model']}, batches of {BATCH} x "
          f"{SIZES['context']}, {STEPS} steps of Adam.\n"
          f"Largest differences between tinyres and {source}:\n")  # fmt: skip
    print(recorded.table(columns))
    if args.record:
        recorded.save(measured, torch.__version__)
        print(f"\nrecorded in {recorded.RECORDED}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
