"""From DOT text to files: which layout program is run, and how a picture gets to its place."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tinyres import expect
from tinyres.graph.svg import beside, finished, prefix_of

PATIENCE = 120  # seconds
ADVICE = 'install a layout program with: pip install "tinyres[demos]"'


def find_engine() -> Path | None:
    """The layout program: TINYRES_DOT, else graphviz-pure's, else `dot` on PATH, else None."""
    chosen = os.environ.get("TINYRES_DOT")
    if chosen:
        if shutil.which(chosen) is None:
            raise RuntimeError(f"TINYRES_DOT is {chosen!r}, but that is no program")
        return Path(chosen)
    wheel = _from_wheel()
    if wheel is not None:
        return wheel
    found = shutil.which("dot")
    return None if found is None else Path(found)


def _from_wheel() -> Path | None:
    """The program in the graphviz-pure wheel, also where its environment is not active."""
    try:
        files = importlib.metadata.files("graphviz-pure") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name in ("graphviz-pure", "graphviz-pure.exe"):
            path = Path(str(file.locate())).resolve()
            if os.access(path, os.X_OK):
                return path
    return None


def laid_out(engine: Path, source: str, kind: str) -> bytes:
    """Run the layout program; both its status and what it wrote are checked."""
    command = [str(engine), "-Kdot", f"-T{kind}", *(["-Gdpi=144"] if kind == "png" else [])]
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, timeout=PATIENCE, check=False
        )
    except OSError as error:
        raise RuntimeError(f"render: {engine} could not be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"render: {engine} took more than {PATIENCE} s: draw fewer boxes with depth= or fold="
        ) from error
    begins = {"svg": b"<svg", "png": b"\x89PNG", "plain": b"graph"}[kind]
    if done.returncode or begins not in done.stdout:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        said = said or "it wrote no picture"
        raise RuntimeError(f"render: {engine} failed with status {done.returncode}: {said}")
    return done.stdout


class Picture(ABC):
    """What a drawing and a pair of them have in common: how a picture becomes a file."""

    source: str
    formats: ClassVar[tuple[str, ...]] = (".svg", ".png", ".gv")

    def render(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture; the suffix says as what: .svg (also without one), .png or .gv.

        A missing folder is made. An old picture stays whole until the new one is complete. Without
        a layout program the DOT text is written beside, and the RuntimeError says where. A pair is
        written as .svg or .gv; for .png render its `left` and its `right`.
        """
        path = Path(expect.instance("render: path", path, (str, os.PathLike), "a string or a Path"))
        if not path.suffix:
            path = path.with_name(path.name + ".svg")
        kind = path.suffix.lower()
        if kind not in self.formats:
            raise ValueError(f"render: {path.name}: {self._refusal(path)}")
        if kind != ".gv" and find_engine() is None:
            beside = path.with_suffix(".gv")
            _replace(beside, self.source.encode())
            raise RuntimeError(
                f"render: there is no layout program. The graph is in {beside}; {ADVICE}"
            )
        _replace(path, self.source.encode() if kind == ".gv" else self._content(kind))
        return path

    def _refusal(self, path: Path) -> str:
        return f"the suffix must be one of {', '.join(self.formats)}"

    @abstractmethod
    def svg(self, *, prefix: str = "") -> str:
        """The picture as SVG text, ready to stand in a page.

        `prefix` begins all ids in it; by default it is made from the picture itself, so it has to
        be given only where the same picture stands on a page twice.
        """

    def _prefix(self, given: str) -> str:
        prefix: str = expect.instance("svg: prefix", given, str, "a text")
        return prefix or prefix_of(self.source)

    def _content(self, kind: str) -> bytes:
        return self.svg().encode()

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows: the picture, or, without a layout program, how to get one."""
        if find_engine() is None:
            return {"text/plain": f"{self!r}\n{ADVICE}"}
        return {"image/svg+xml": self.svg(), "text/plain": repr(self)}


@dataclass(frozen=True, eq=False)
class Drawing(Picture):
    """A drawn graph: DOT text, and pictures made from it. Notebooks show it as it is."""

    source: str
    title: str
    description: str
    theme: str = "auto"

    def svg(self, *, prefix: str = "") -> str:
        svg = laid_out(_engine("svg"), self.source, "svg")
        prefix = self._prefix(prefix)
        return finished(svg, prefix, self.theme, self.title, self.description)

    def _content(self, kind: str) -> bytes:
        if kind == ".png":
            return laid_out(_engine("render"), self.source, "png")
        return super()._content(kind)

    def __repr__(self) -> str:
        what = self.description.rstrip(".")
        return f"<Drawing {self.title!r}: {what}; .render('picture.svg') writes it>"


@dataclass(frozen=True, eq=False)
class Pair(Picture):
    """Two drawings side by side (one above the other where they run from left to right)."""

    left: Drawing
    right: Drawing
    across: bool = True
    formats: ClassVar[tuple[str, ...]] = (".svg", ".gv")

    @property
    def source(self) -> str:  # type: ignore[override]
        """Both DOT texts."""
        return f"{self.left.source}\n{self.right.source}"

    @property
    def title(self) -> str:
        """Both titles."""
        return f"{self.left.title} and {self.right.title}"

    @property
    def description(self) -> str:
        """Both pictures in words."""
        return " ".join(f"{side.title}: {side.description}" for side in (self.left, self.right))

    def svg(self, *, prefix: str = "") -> str:
        prefix = self._prefix(prefix)
        sides = self.left.svg(prefix=f"{prefix}-left"), self.right.svg(prefix=f"{prefix}-right")
        return beside(sides, prefix, self.across, self.left.theme, self.title)

    def _refusal(self, path: Path) -> str:
        if path.suffix.lower() not in Picture.formats:
            return super()._refusal(path)
        each = [f"pair.{s}.render('{path.stem}-{s}{path.suffix}')" for s in ("left", "right")]
        return f"a pair is written as .svg or .gv; for two files write {' and '.join(each)}"

    def __repr__(self) -> str:
        titles = f"{self.left.title!r} beside {self.right.title!r}"
        return f"<Pair of drawings, {titles}; .render('pair.svg') writes it>"


def _engine(what: str) -> Path:
    engine = find_engine()
    if engine is None:
        raise RuntimeError(f"{what}: there is no layout program: {ADVICE}")
    return engine


def _replace(path: Path, content: bytes) -> None:
    """Write beside and move into place: whoever looks sees the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tinyres-")
    except OSError as error:
        raise type(error)(f"render: can't write to {path.parent}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
