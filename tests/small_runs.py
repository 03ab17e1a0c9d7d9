"""The small text and settings on which the lessons are tested."""

from __future__ import annotations

from demos import training

WORDS = "the quick brown fox jumps over the lazy dog, and then it sleeps. "
TINY = ["--blocks", "1", "--d-model", "8", "--heads", "2", "--d-ff", "16", "--context", "8",
        "--batch", "4"]  # fmt: skip
SMALL = training.Setting(
    blocks=2, d_model=8, heads=2, d_ff=16, context=8, batch=4, steps=4, lr=1e-3
)
