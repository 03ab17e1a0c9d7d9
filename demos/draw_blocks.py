"""The graph of a block, of a deep stack, and the gradient that was measured on every edge.

The picture is drawn from the graph that was recorded while the model computed. The thick orange
line is the skip path. In Pre-LN it runs unbroken from the embedding to the final norm. In Post-LN a
norm stands on it after every addition.

With --gradient a backward pass is run and each edge shows the norm of the gradient that crossed it,
compared with that at the top of the stack: grey where it is as large, blue where it is smaller,
brown where it is larger, and the line is as wide as it is large. --steps trains the model before.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import command
from demos.report import BOTH

NAMES = {**BOTH, "residual": "residual without norm", "plain": "no residual"}
VOCAB, WIDTH, HEADS, CONTEXT = 65, 64, 4, 32


def make_model(placement: str, blocks: int, **options: Any) -> tr.nn.TransformerLM:
    """A small character model; the pictures show its sizes."""
    return tr.nn.TransformerLM(
        VOCAB, WIDTH, HEADS, blocks, CONTEXT, placement=placement, rng=0, **options
    )


def make_batch(size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens and the ones after them."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, (size, CONTEXT + 1))
    return tokens[:, :-1], tokens[:, 1:]


# ---------------------------------------------------------------- the graph


def draw_model(
    model: tr.nn.TransformerLM, title: str, *, spelled_out: bool = False, **options: Any
) -> tr.graph.Drawing:
    """A model's graph, from its tokens to its logits."""
    tokens, _ = make_batch()
    with tr.spelled_out() if spelled_out else contextlib.nullcontext():
        logits = model(tokens)
    return tr.draw(logits, title=title, **options)


def draw_block(placement: str, *, depth: int = 2, **options: Any) -> tr.graph.Drawing:
    """One block with its layers: the picture that the lesson is about."""
    model = make_model(placement, 1, activation="gelu")
    options = {"title": f"{NAMES.get(placement, placement)} block", **options}
    return draw_model(model, spelled_out=True, depth=depth, **options)


def draw_stack(
    placement: str, blocks: int = 24, *, depth: int = 1, **options: Any
) -> tr.graph.Drawing:
    """A deep stack; equal blocks are folded unless `fold=False`."""
    options = {"title": f"{NAMES.get(placement, placement)}, {blocks} blocks", **options}
    return draw_model(make_model(placement, blocks), depth=depth, **options)


# ---------------------------------------------------------------- the gradient on its edges


def measure(model: tr.nn.TransformerLM, batch: Any) -> tr.graph.Graph:
    """A model's graph with the gradient of its loss on every edge; its own gradients stay."""
    tokens, targets = batch
    kept = [p.grad for p in model.parameters()]
    model.zero_grad()
    graph = tr.trace_backward(model.loss(tokens, targets))
    for p, grad in zip(model.parameters(), kept):
        p.grad = grad
    return graph


def trained(model: tr.nn.TransformerLM, steps: int, lr: float = 1e-3) -> tr.nn.TransformerLM:
    """The model after some steps of Adam without warm-up, on one batch of random tokens."""
    optimizer = tr.optim.Adam(model.parameters(), lr)
    tokens, targets = make_batch()
    for _ in range(steps):
        model.zero_grad()
        model.loss(tokens, targets).backward()
        optimizer.step()
    return model


# ---------------------------------------------------------------- the command line


def options() -> argparse.ArgumentParser:
    known = command.parser("draw_blocks", __doc__)
    add = known.add_argument
    add("--placement", choices=sorted(tr.nn.PLACEMENTS), default="pre", metavar="NAME",
        help="default: pre; python -m demos.placements lists them")  # fmt: skip
    add("--blocks", type=command.whole_number(1), default=1, help="how many (default: 1)")
    add("--depth", type=command.whole_number(0),
        help="0 a box a block, 1 a sublayer, 2 a layer, 3 every op")  # fmt: skip
    add("--spelled-out", action="store_true", help="record primitive ops, not fused ones")
    add("--parameters", action="store_true", default=None, help="draw the parameters, too")
    add("--no-fold", dest="fold", action="store_false", help="draw every one of equal blocks")
    add("--gradient", action="store_true", help="measure the gradient and draw it on the edges")
    add("--steps", type=command.whole_number(0), default=0, help="steps of Adam before it is drawn")
    add("--rankdir", choices=("BT", "TB", "LR", "RL"), default="BT", help="default: BT")
    add("--theme", choices=("auto", "light", "dark"), default="auto", help="default: auto")
    add("--title", help="default: the placement and the number of blocks")
    add("--out", type=Path, default=Path("out/draw_blocks/blocks.svg"),
        help="file: .svg, .png or .gv (default: %(default)s)")  # fmt: skip
    add("--gallery", type=Path, metavar="DIR", help="write the README's pictures there instead")
    return known


def from_options(args: argparse.Namespace) -> tr.graph.Drawing:
    """The drawing that the command line asks for."""
    blocks = f"{args.blocks} block{'s' if args.blocks > 1 else ''}"
    steps = f", after {args.steps} steps of Adam" if args.steps else ""
    title = args.title or f"{NAMES.get(args.placement, args.placement)}, {blocks}{steps}"
    style = dict(fold=args.fold, parameters=args.parameters, rankdir=args.rankdir, theme=args.theme)
    model = trained(make_model(args.placement, args.blocks), args.steps)
    if args.gradient:
        depth = 1 if args.depth is None else args.depth
        return tr.draw(measure(model, make_batch()), title=title, depth=depth, **style)
    return draw_model(model, title, depth=args.depth, spelled_out=args.spelled_out, **style)


def main(argv: list[str] | None = None) -> int:
    known = options()
    args = known.parse_args(argv)
    with command.refusals(known):
        if args.gallery:
            from demos import readme_pictures  # which are made of this lesson's

            for name, drawing in readme_pictures.all_of_them().items():
                print(drawing.render(args.gallery / f"{name}.svg"))
        else:
            print(from_options(args).render(args.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
