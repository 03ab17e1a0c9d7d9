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
from demos import text
from demos.training import Setting, Trainer, make_task

NAMES = {
    "pre": "Pre-LN",
    "post": "Post-LN",
    "residual": "residual without norm",
    "plain": "no residual",
}
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


def draw_model(
    model: tr.nn.TransformerLM, title: str, *, spelled_out: bool = False, **options: Any
) -> Any:
    """A model's graph, from its tokens to its logits."""
    tokens, _ = make_batch()
    with tr.spelled_out() if spelled_out else contextlib.nullcontext():
        logits = model(tokens)
    return tr.draw(logits, title=title, **options)


def draw_block(placement: str, *, depth: int = 2, **options: Any) -> Any:
    """One block with its layers: the picture that the lesson is about."""
    model = make_model(placement, 1, activation="gelu")
    options = {"title": f"{NAMES.get(placement, placement)} block", **options}
    return draw_model(model, spelled_out=True, depth=depth, **options)


def draw_stack(placement: str, blocks: int = 24, *, depth: int = 1, **options: Any) -> Any:
    """A deep stack; equal blocks are folded unless `fold=False`."""
    options = {"title": f"{NAMES.get(placement, placement)}, {blocks} blocks", **options}
    return draw_model(make_model(placement, blocks), depth=depth, **options)


def measure(model: tr.nn.TransformerLM, batch: Any) -> tr.graph.Graph:
    """A model's graph with the gradient of its loss on every edge; its own gradients stay."""
    tokens, targets = batch
    kept = [p.grad for p in model.parameters()]
    model.zero_grad()
    graph = tr.trace_backward(model.loss(tokens, targets))
    for p, grad in zip(model.parameters(), kept):
        p.grad = grad
    return graph


def draw_gradient(model: tr.nn.TransformerLM, batch: Any, title: str, **options: Any) -> Any:
    """A model's graph with the measured gradient on every edge."""
    return tr.draw(measure(model, batch), title=title, **{"depth": 1, "fold": False, **options})


def draw_gradient_pair(
    models: tuple[Any, Any], batch: Any, titles: tuple[str, str], **options: Any
) -> Any:
    """Two models of one depth on the same batch, side by side with one scale."""
    graphs = [measure(model, batch) for model in models]
    return tr.draw_pair(*graphs, titles=titles, **{"depth": 1, "fold": False, **options})


def trained(model: tr.nn.TransformerLM, steps: int, lr: float = 1e-3) -> tr.nn.TransformerLM:
    """The model after some steps of Adam without warm-up, on one batch of random tokens."""
    optimizer = tr.optim.Adam(model.parameters(), lr)
    tokens, targets = make_batch()
    for _ in range(steps):
        model.zero_grad()
        model.loss(tokens, targets).backward()
        optimizer.step()
    return model


def draw_block_pair(*, depth: int = 2, **options: Any) -> Any:
    """A block of each placement, side by side."""
    models = [make_model(placement, 1, activation="gelu") for placement in ("pre", "post")]
    tokens, _ = make_batch()
    with tr.spelled_out():
        logits = [model(tokens) for model in models]
    return tr.draw_pair(*logits, titles=("Pre-LN", "Post-LN"), depth=depth, **options)


def gallery() -> dict[str, Any]:
    """The pictures of the README and of the recorded DOT texts, by file name."""
    drawings: dict[str, Any] = {"blocks": draw_block_pair()}
    for placement in ("pre", "post"):
        drawings[f"{placement}-block"] = draw_block(placement)
        drawings[f"{placement}-primitives"] = draw_block(placement, depth=3)
        drawings[f"{placement}-stack24"] = draw_stack(placement, 24)
        drawings[f"{placement}-stack6-LR"] = draw_stack(placement, 6, fold=False, rankdir="LR")
    return drawings


def gradient_gallery(moments: tuple[int, ...] = (0, 5, 200)) -> dict[str, Any]:
    """Pre-LN and Post-LN on real text, before and after steps of Adam without warm-up."""
    setting = Setting(blocks=12, d_model=32, d_ff=128, batch=8, lr=1e-3, beta2=0.999)
    task = make_task(setting, text.load())
    trainers = [Trainer(setting.but(placement=p), task) for p in ("pre", "post")]
    tokens, targets = task.held_out()
    batch = tokens[:16], targets[:16]
    drawings = {}
    for moment in moments:
        for trainer in trainers:
            while trainer.done < moment:
                trainer.step()
        titles = f"Pre-LN, step {moment}", f"Post-LN, step {moment}"
        models = trainers[0].model, trainers[1].model
        drawings[f"gradient-step{moment}"] = draw_gradient_pair(models, batch, titles, fold=True)
    return drawings


# ---------------------------------------------------------------- the command line


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demos.draw_blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--placement", choices=sorted(tr.nn.PLACEMENTS), default="pre", help="default: pre")
    add("--blocks", type=_at_least(1), default=1, help="how many (default: 1)")
    add("--depth", type=_at_least(0), help="0 a box a block, 1 a sublayer, 2 a layer, 3 every op")
    add("--spelled-out", action="store_true", help="record primitive ops, not fused ones")
    add("--parameters", action="store_true", default=None, help="draw the parameters, too")
    add("--no-fold", dest="fold", action="store_false", help="draw every one of equal blocks")
    add("--gradient", action="store_true", help="measure the gradient and draw it on the edges")
    add("--steps", type=_at_least(0), default=0, help="steps of Adam before it is drawn")
    add("--rankdir", choices=("BT", "TB", "LR", "RL"), default="BT", help="default: BT")
    add("--theme", choices=("auto", "light", "dark"), default="auto", help="default: auto")
    add("--title", help="default: the placement and the number of blocks")
    add("--out", type=Path, default=Path("out/draw_blocks/blocks.svg"),
        help="file: .svg, .png or .gv (default: %(default)s)")  # fmt: skip
    add("--gallery", type=Path, metavar="DIR", help="write the README's pictures there instead")
    return parser


def _at_least(low: int) -> Any:
    def number(text: str) -> int:
        if not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {low}: {text!r}")
        return int(text)

    return number


def from_options(args: argparse.Namespace) -> Any:
    """The drawing that the command line asks for."""
    blocks = f"{args.blocks} block{'s' if args.blocks > 1 else ''}"
    steps = f", after {args.steps} steps of Adam" if args.steps else ""
    title = args.title or f"{NAMES.get(args.placement, args.placement)}, {blocks}{steps}"
    shared = dict(
        fold=args.fold, parameters=args.parameters, rankdir=args.rankdir, theme=args.theme
    )
    model = trained(make_model(args.placement, args.blocks), args.steps)
    if args.gradient:
        depth = 1 if args.depth is None else args.depth
        return draw_gradient(model, make_batch(), title, depth=depth, **shared)
    return draw_model(model, title, depth=args.depth, spelled_out=args.spelled_out, **shared)


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        if args.gallery:
            for name, drawing in {**gallery(), **gradient_gallery()}.items():
                print(drawing.render(args.gallery / f"{name}.svg"))
        else:
            print(from_options(args).render(args.out))
    except (ValueError, RuntimeError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
