"""Same seed, same bits: in another process, and whatever order its hashes put sets into."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn, optim

PATH = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])


def digest() -> str:
    """Of the initial and the trained parameters of all placements, text, state and drawing."""
    total = hashlib.sha256()
    for placement in nn.PLACEMENTS:
        model = nn.TransformerLM(
            vocab=9, d_model=8, heads=2, blocks=2, context=6, placement=placement, dropout=0.1,
            rng=3,
        )  # fmt: skip
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        rng = np.random.default_rng(1)
        for _ in range(3):
            tokens = rng.integers(0, 9, (2, 7))
            optimizer.zero_grad()
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
        for name, array in model.state_dict().items():
            total.update(name.encode() + array.tobytes())
        total.update(repr([loss.item(), model.generate([1], 9, rng=0).tolist()]).encode())
    total.update(tr.draw(model.loss([[1, 2]], [[2, 3]]), depth=2).source.encode())
    return total.hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_same_bits_in_another_process(hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", "import test_same_bits; print(test_same_bits.digest())"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": PATH},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == digest()
