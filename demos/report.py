"""What a lesson hands back, and the page that shows it.

A lesson measures something and returns a `Section`: text, pictures, tables, and its findings. A
finding is a claim with the condition that decides it, computed from the numbers of this run. So a
page that says "holds" has measured it, and one that says "does not hold" is no mistake of the page.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

BOTH = {"pre": "Pre-LN", "post": "Post-LN"}  # the placements that the lessons compare


@dataclass(frozen=True)
class Finding:
    """A claim, the numbers that were measured, whether they bear it out, and what that takes."""

    claim: str
    measured: str
    holds: bool
    asked: str = ""

    def line(self, smaller: str = "") -> str:
        """The finding as a line for the terminal; below one that does not hold, what was asked."""
        line = f"{'[holds]' if self.holds else '[DOES NOT HOLD]'} {self.claim}: {self.measured}"
        if self.asked and not self.holds:
            line += f"\n    asked: {self.asked}"
        if smaller and not self.holds:
            line += f"\n    {SMALLER.format(smaller)}"
        return line


@dataclass(frozen=True)
class Picture:
    """A picture that is ready to stand in a page: its SVG, and what it shows in words."""

    name: str
    svg: str
    words: str


@dataclass(frozen=True)
class Figure:
    """Pictures side by side (below each other on a narrow page) under one caption."""

    pictures: Sequence[Picture]
    caption: str


@dataclass(frozen=True)
class Table:
    """Rows of text under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str


@dataclass(frozen=True)
class Sample:
    """Code, or text that a model wrote, shown as it is."""

    text: str
    caption: str


SMALLER = "this run was smaller than the lesson, for which the claim is made: {}"
Part: TypeAlias = "str | Figure | Table | Sample"


@dataclass
class Section:
    """What a lesson has to say; `records` are its measurements as plain data."""

    name: str
    title: str
    parts: list[Part]
    findings: list[Finding] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    smaller: str = ""  # in what the run was smaller than the lesson

    def _repr_html_(self) -> str:
        """A notebook shows what the page would."""
        return _section(self, titled=True)


def told(lesson: str | None, start: int, end: int | None = None) -> str:
    """Paragraphs of a lesson's docstring, counted from 0 after its first line.

    >>> told("Title.\\n\\nOne.\\n\\nTwo.", 1)
    'Two.'
    """
    return "\n\n".join((lesson or "").split("\n\n")[1:][start:end])


# ---------------------------------------------------------------- the numbers


def write_records(path: Path, sections: Iterable[Section]) -> None:
    """One line of JSON for each measurement and each finding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for section in sections:
            found = [
                {"finding": f.claim, "measured": f.measured, "asked": f.asked, "holds": f.holds}
                for f in section.findings
            ]
            for record in [*section.records, *found]:
                line = _plain({"lesson": section.name, **record})
                file.write(json.dumps(line, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """Lists for arrays, and text for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- the page


def write_page(
    path: Path, title: str, sections: Sequence[Section], lead: str = "", end: str = ""
) -> Path:
    """One HTML file with everything in it: it is readable without a network."""
    contents = _contents(sections) if len(sections) > 1 else ""
    body = "".join(_section(s, titled=len(sections) > 1) for s in sections)
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{_paragraph(lead)}{contents}{body}"
        f"<footer>{_paragraph(end)}</footer>\n</main>\n</body>\n</html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path


def _contents(sections: Sequence[Section]) -> str:
    """The sections with their claims, and how many of these hold."""
    findings = [finding for section in sections for finding in section.findings]
    held = sum(f.holds for f in findings)
    rows = ""
    for section in sections:
        claims = "".join(
            f"<li>{_inline(f.claim)}{'' if f.holds else ' <b>(does not hold in this run)</b>'}</li>"
            for f in section.findings
        )
        rows += f'<li><a href="#{section.name}">{escape(section.title)}</a><ul>{claims}</ul></li>\n'
    count = f"{held} of the {len(findings)} claims hold by the numbers that this run measured."
    return f"<nav><ol>\n{rows}</ol>\n<p>{count}</p></nav>\n"


def _section(section: Section, titled: bool) -> str:
    parts = "".join(map(_part, section.parts))
    findings = "".join(_finding(f, section.smaller) for f in section.findings)
    heading = f"<h2>{escape(section.title)}</h2>\n" if titled else ""
    return (
        f'<section id="{section.name}">\n{heading}{parts}'
        f'<ul class="findings">\n{findings}</ul>\n</section>\n'
    )


def _finding(f: Finding, smaller: str) -> str:
    """The claim, what was measured, and in small print what was asked of it."""
    asked = [f"Asked: {f.asked}."] if f.asked else []
    note = [f"But {SMALLER.format(smaller)}."] if smaller and not f.holds else []
    small = f" <small>{_inline(' '.join(asked + note))}</small>" if asked or note else ""
    return (
        f'<li class="{"holds" if f.holds else "fails"}">'
        f"<b>{'Holds' if f.holds else 'Does not hold in this run'}.</b> "
        f"{_inline(f.claim)}: <span>{_inline(f.measured)}.</span>{small}</li>\n"
    )


def _part(part: Part) -> str:
    if isinstance(part, str):
        return _paragraph(part)
    if isinstance(part, Sample):
        body = f"<pre>{escape(part.text)}</pre>"
    elif isinstance(part, Table):
        head = "".join(f"<th>{_inline(cell)}</th>" for cell in part.head)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>"
            for row in part.rows
        )
        body = f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
    else:
        pictures = "".join(f'<div class="picture">{p.svg}</div>' for p in part.pictures)
        body = f'<div class="pictures n{len(part.pictures)}">{pictures}</div>'
    return f"<figure>{body}<figcaption>{_inline(part.caption)}</figcaption></figure>\n"


def _paragraph(text: str) -> str:
    """Paragraphs; `code` stands between backquotes, an indented block is a formula."""
    html = ""
    for block in re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n")):
        if block.startswith("    "):
            html += f"<pre>{escape(textwrap.dedent(block))}</pre>\n"
        elif block.strip():
            html += f"<p>{_inline(block.strip())}</p>\n"
    return html


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


CSS = """
:root { --ink: #1f2328; --muted: #57606a; --page: #ffffff; --card: #f6f8fa; --line: #d8dee4;
  --holds: #117733; --fails: #b42318; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --muted: #9da7b3; --page: #0d1117;
  --card: #161b22; --line: #30363d; --holds: #7ee787; --fails: #ff8f85; --link: #79b8ff; } }
* { box-sizing: border-box; }
html { background: var(--page); color: var(--ink); -webkit-text-size-adjust: 100%; }
body { margin: 0;
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
h1, h2, p, pre, nav, figcaption, .findings, .scroll { max-width: 42rem; margin-inline: auto; }
h1 { font-size: 2.1rem; line-height: 1.2; margin-block: 0 1rem; text-wrap: balance; }
h2 { font-size: 1.45rem; line-height: 1.3; margin-block: 4rem .75rem; text-wrap: balance; }
p { margin-block: 0 1rem; }
a { color: var(--link); }
code, pre { font: .88em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { background: var(--card); padding: .1em .3em; border-radius: 4px; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  margin-block: 0; padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: .8rem; }
p + pre { margin-bottom: 1rem; }
nav { border-block: 1px solid var(--line); padding-top: 1rem; margin-top: 1.5rem; }
nav ol { padding-left: 1.4rem; margin: 0 0 .75rem; }
nav ul { list-style: none; padding: 0; margin: 0 0 .5rem; }
nav ul, nav p { color: var(--muted); font-size: .88rem; line-height: 1.45; }
nav b { color: var(--fails); }
figure { margin: 1.75rem 0; }
figcaption { color: var(--muted); font-size: .88rem; line-height: 1.5; margin-top: .6rem; }
.pictures { display: grid; gap: 1rem; align-items: end; margin-inline: auto;
  grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); }
.n1 { max-width: 36rem; }
.n2, .n4 { max-width: 56rem;
  grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
.n1:has(.wide) { max-width: 56rem; }
.picture { min-width: 0; text-align: center; overflow-x: auto; }
.picture svg { max-width: 100%; height: auto; }
.picture svg.plot { width: 100%; }
.picture svg.wide { min-width: 40rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem;
  line-height: 1.45; }
th, td { text-align: left; padding: .4rem 1.1rem .4rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--muted); font-weight: 600; }
td:last-child { white-space: nowrap; }
.findings { list-style: none; margin-block: 1.75rem 0; padding: 0; }
.findings li { border-left: 4px solid var(--holds); background: var(--card); margin: .5rem 0;
  padding: .6rem .9rem; border-radius: 0 6px 6px 0; font-size: .95rem; line-height: 1.5; }
.findings b { color: var(--holds); }
.findings small { display: block; color: var(--muted); font-size: .82rem; margin-top: .2rem; }
.findings .fails { border-color: var(--fails); }
.findings .fails b { color: var(--fails); }
footer { margin-top: 4rem; color: var(--muted); font-size: .88rem; }
"""
