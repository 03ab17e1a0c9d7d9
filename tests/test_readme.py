"""The Python in the README runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# One takes a model of PyTorch and downloaded weights: test_interop.py has what it shows.
ALONE = [block for block in BLOCKS if "torch.nn" not in block]


@pytest.mark.parametrize("block", ALONE)
def test_the_python_in_the_readme_runs(block, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(block, encoding="utf-8")
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, timeout=120)
    drawn = re.findall(r'render\("(.*)"\)', block)
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn)


def test_the_readme_shows_python():
    assert len(BLOCKS) == len(ALONE) + 1 and len(ALONE) >= 3
