"""Which layout program is found, and what is said of one that does not do its work."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

import tinyres as tr
from tinyres.graph import render

posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in programs are shell scripts")


@pytest.fixture
def drawing():
    return tr.draw(tr.Tensor([1.0], requires_grad=True) * 2.0)


def program(path, lines, mode=0o755):
    path.write_text(lines)
    path.chmod(mode)
    return path


class Installed:
    """A file of an installed distribution."""

    def __init__(self, path):
        self.name, self.locate = path.name, lambda: path


@posix
@pytest.mark.parametrize("mode", [None, 0o644, 0o755], ids=["absent", "not to be run", "whole"])
def test_the_program_in_the_wheel(mode, monkeypatch, tmp_path):
    files = [Installed(tmp_path / "README")]
    path = tmp_path / "graphviz-pure"
    if mode is not None:
        files.append(Installed(program(path, "#!/bin/sh\n", mode)))
    monkeypatch.setattr(importlib.metadata, "files", lambda name: files)
    monkeypatch.setenv("PATH", "")
    may_run = mode == 0o755
    assert render.find_engine() == (path.resolve() if may_run else None)


def test_without_the_wheel_a_dot_is_looked_for(monkeypatch, drawing):
    def files(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"svg: there is no layout program: .*pip install"):
        drawing.svg()


@posix
@pytest.mark.parametrize(
    "lines, words",
    [("\x7fELF", "could not be run"), ("#!/bin/sh\nexec sleep 30\n", r"took more than 0\.2 s")],
    ids=["no program", "slow"],
)
def test_a_program_that_does_not_run_or_end_is_named(lines, words, monkeypatch, drawing, tmp_path):
    monkeypatch.setattr(render, "PATIENCE", 0.2)
    monkeypatch.setenv("TINYRES_DOT", str(program(tmp_path / "engine", lines)))
    with pytest.raises(RuntimeError, match=f"engine.* {words}"):
        drawing.render(tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()
