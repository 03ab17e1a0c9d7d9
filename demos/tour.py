"""All of it in one page and a few minutes: why depth needs the addition, and where the norm stands.

The tour runs the lessons one after the other with the same functions that they use themselves, and
puts what they measured into out/tour/report.html. Every number on that page was measured in
the run that wrote it; where a claim does not come true, the page and the terminal say so.

1. By hand: x + F(x) and LayerNorm on three numbers                  (demos.worked_example)
2. Why depth dies: forty scalings, and real stacks before training   (demos.vanishing_signal)
3. The pictures: the graphs of both blocks and of a deep stack       (demos.draw_blocks)
4. Why it matters where the norm stands: tokens before training      (demos.token_collapse)
5. What training does to it: tokens and gradients                    (demos.gradient_flow)
6. Training on real text, with and without warm-up                   (demos.compare)
7. Reversing a sequence: all or nothing                              (demos.reverse)
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tinyres as tr
from demos import (
    command,
    compare,
    draw_blocks,
    gradient_flow,
    reverse,
    text,
    token_collapse,
    vanishing_signal,
    worked_example,
)
from demos.folder import alone_in
from demos.plots import Picture
from demos.report import BOTH, Figure, Finding, Part, Section, write_page, write_records
from tinyres.graph import find_skips

LEAD = """
    A deep Transformer is a stack of equal blocks. Two small decisions make it trainable: that each
    block adds to its input instead of replacing it (the residual connection), and on which side of
    that addition the LayerNorm stands. This page shows both, with numbers that were measured while
    it was written, by a framework made from scratch in NumPy.
"""
DEEP = 24


def on_the_stream(placement: str, blocks: int) -> tuple[int, int]:
    """Additions and norms on the way from the top of a stack down its skips."""
    stack = tr.nn.TransformerStack(16, 2, blocks, placement=placement, rng=0)
    graph = tr.trace(stack(tr.Tensor(np.ones((1, 4, 16), np.float32), requires_grad=True)))
    skips, inputs = find_skips(graph), graph.inputs()
    node, additions, norms = graph.output, 0, 0
    while node in skips or graph.nodes[node].op == "layer_norm":
        if node in skips:
            node, additions = skips[node].source, additions + 1
        else:
            node, norms = inputs[node][0].source, norms + 1
    return additions, norms


def drawn(out: Path) -> list[Part]:
    """Both blocks, and a deep stack with its equal blocks folded."""
    drawings = {f"block-{p}": draw_blocks.draw_block(p) for p in BOTH}
    drawings |= {f"stack-{p}": draw_blocks.draw_stack(p, DEEP) for p in BOTH}
    shown = {}
    try:
        for name, drawing in drawings.items():
            drawing.render(out / f"{name}.svg")
            drawing.render(out / f"{name}.png")
            shown[name] = Picture(name, drawing.svg(prefix=name), drawing.description)
    except RuntimeError as error:  # there is no layout program: the rest of the tour needs none
        return [f"The pictures could not be drawn here. {error}"]
    return [
        Figure([shown["block-pre"], shown["block-post"]], "One block: Pre-LN, Post-LN."),
        Figure([shown["stack-pre"], shown["stack-post"]], f"{DEEP} blocks, equal ones folded."),
    ]


def pictures(out: Path) -> Section:
    """The graphs of both placements, and what stands on their streams."""
    counts = {p: on_the_stream(p, DEEP) for p in BOTH}
    (pre_adds, pre_norms), (post_adds, post_norms) = counts.values()
    found = Finding(
        "Only the final norm touches Pre-LN's stream; Post-LN's is cut after every addition",
        f"{DEEP} blocks have on their stream, Pre-LN: {pre_adds} additions, {pre_norms} norm; "
        f"Post-LN: {post_adds} additions, {post_norms} norms",
        pre_norms == 1 and post_norms == post_adds == pre_adds == 2 * DEEP,
        "two additions a block; one norm in all on Pre-LN's stream, one an addition on Post-LN's",
    )
    text = """
        These graphs were recorded while the blocks computed. The thick orange line is the
        skip path: what a value passes on its way through the additions. In Pre-LN the norms stand
        in the branches, and the line runs through unbroken. In Post-LN there is a norm on the line
        after every addition, and whatever goes up or comes back has to pass it.
    """
    records = [{"placement": p, "additions": a, "norms": n} for p, (a, n) in counts.items()]
    title = "What the difference looks like"
    return Section("draw_blocks", title, [text, *drawn(out)], [found], records)


def run(source: text.Text, out: Path, seed: int) -> list[Section]:
    """All the lessons, in order."""
    lessons: list[Callable[[], Section]] = [
        worked_example.lesson,
        lambda: vanishing_signal.lesson(source, out, seed),
        lambda: pictures(out),
        lambda: token_collapse.lesson(source, out, seed),
        lambda: gradient_flow.lesson(source, out, seed),
        lambda: compare.lesson(source, out, seed),
        lambda: reverse.lesson(out, seed),
    ]
    sections = []
    for lesson in lessons:
        start = time.perf_counter()
        section = lesson()
        section.records.append({"seconds": time.perf_counter() - start})
        sections.append(section)
    return sections


def main(argv: list[str] | None = None) -> int:
    parser = command.options("tour", __doc__, seed=0)
    parser.add_argument("--text", type=Path, help="a text to learn instead of Python's own source")
    args = parser.parse_args(argv)
    with contextlib.ExitStack() as until_the_end:
        try:
            source = text.load(args.text)
            source.check_context(compare.SETTINGS["pre"][1].context)
            until_the_end.enter_context(alone_in(args.out))
        except (ValueError, OSError) as error:
            parser.error(str(error))
        try:
            return write(source, args.out, args.seed)
        except KeyboardInterrupt:
            print(f"stopped; {args.out} has the pictures up to here, and no page")
            return 130


def write(source: text.Text, out: Path, seed: int) -> int:
    """Run the tour, and put its page and its numbers into a folder."""
    start = time.perf_counter()
    sections = run(source, out, seed)
    write_records(out / "measurements.jsonl", sections)
    title = "Why deep Transformers add, and where the norm stands"
    seconds = time.perf_counter() - start
    end = f"""
        Made by `python -m demos.tour --seed {seed}` in {seconds:.0f} seconds, with Python
        {platform.python_version()} and NumPy {np.__version__}. `python -m demos` lists the lessons,
        each with more to try.
    """
    page = write_page(out / "report.html", title, sections, LEAD, end)
    for finding in (finding for section in sections for finding in section.findings):
        print(finding.line())
    print(f"{seconds:.0f} s. Open {page} in a browser.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
