"""Write tests/data/reference.npz anew: `python tests/record_reference.py`; it needs PyTorch."""

from __future__ import annotations

import numpy as np
from reference_cases import CASES, RECORDED


def main() -> None:
    """Record what PyTorch computes in float64."""
    import torch

    torch.set_num_threads(1)
    arrays = {"version": np.array(torch.__version__)}
    for name, (_, theirs) in CASES.items():
        for key, array in theirs(torch, name, "float64").items():
            arrays[f"{name}: {key}"] = array
    RECORDED.parent.mkdir(exist_ok=True)
    np.savez_compressed(RECORDED, **arrays)
    print(f"{RECORDED}: {RECORDED.stat().st_size:,} bytes, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
