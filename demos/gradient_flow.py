"""What training does to Post-LN: its tokens stay alike, and the gradient dies.

Before training, the tokens of a deep Post-LN stack are nearly alike (demos.token_collapse). Then
training begins. Adam moves every weight by about the learning rate, however small its gradient is,
and the first steps drive both stacks towards the collapse. Pre-LN comes out again. Post-LN does
not, and the gradient that could lead it out has vanished.

The graphs of both models show the gradient that was measured on every edge. Follow a line from the
top down, as the gradient goes. Its colour and its width are the gradient's size there, divided by
that at the last block, and the number beside a block is the same ratio. Grey is as large as at the
top, blue and thin smaller, brown and wide larger. All have one scale, so they can be compared.

This does not mean that Post-LN always fails. It depends on depth, learning rate and initialisation
together. A lower rate or smaller weights can save it, and so can a slow start (demos.compare).
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import tinyres as tr
from demos import command, draw_blocks, plots, text
from demos.plots import Picture
from demos.report import BOTH, Figure, Finding, Part, Section, told
from demos.token_collapse import look
from demos.training import Setting, Trainer, make_task, progress

SETTING = Setting(blocks=12, d_model=32, d_ff=128, batch=8, lr=1e-3, beta2=0.999, steps=200)
MOMENTS = (0, 5, 200)
DASHES = ("-", "--", ":")
DECADES = 2  # of the gradient's scale in the graphs, on either side of 1


def in_training(
    source: text.Text, setting: Setting
) -> tuple[list[dict[str, Any]], dict[tuple[str, int], tr.graph.Graph]]:
    """Both placements before training, and after as many steps as MOMENTS says."""
    measured, graphs = [], {}
    for placement, name in BOTH.items():
        trainer = Trainer(setting.but(placement=placement), make_task(setting, source))
        tokens, targets = trainer.task.held_out()
        batch = tokens[:64], targets[:64]
        records = progress(trainer, f"{name}, looking inside")
        for step in itertools.chain([0], (int(record["step"]) for record in records)):
            if step in MOMENTS:
                measured.append(look(trainer, batch))
                graphs[placement, step] = draw_blocks.measure(trainer.model, batch)
    return measured, graphs


def finding(moments: list[dict[str, Any]]) -> Finding:
    """A condition on the tokens at the top and the gradient at the bottom."""
    seen = {(m["placement"], m["step"]): m for m in moments}
    collapse = {key: float(m["collapse"][-1]) for key, m in seen.items()}
    gradient = {key: m["embedding gradient"] for key, m in seen.items()}
    first, early, late = MOMENTS
    left = {p: gradient[p, late] / gradient[p, first] for p in BOTH}

    def course(placement: str) -> str:
        return ", ".join(f"{collapse[placement, step]:.1g}" for step in MOMENTS)

    return Finding(
        "In training Post-LN's tokens stay alike and its gradient dies; Pre-LN recovers",
        f"1 - cosine at steps {', '.join(map(str, MOMENTS))}: Post-LN {course('post')}, Pre-LN "
        f"{course('pre')}; the embedding's gradient falls to {left['post']:.2g} and "
        f"{left['pre']:.2g} of its first size",
        collapse["post", late] < 0.1 * collapse["post", first]
        and collapse["pre", late] > collapse["pre", early]
        and left["post"] < 0.1 < left["pre"],
        f"at step {late} Post-LN's 1 - cosine below a tenth of its first, Pre-LN's above that at "
        f"step {early}; the gradient below a tenth in Post-LN and above it in Pre-LN",
    )


def pictures(moments: list[dict[str, Any]], what: str, title: str, out: Path) -> list[Any]:
    """One quantity at each block, a picture a placement, on one scale."""
    low, high = min(m[what].min() for m in moments), max(m[what].max() for m in moments)
    made = []
    for placement, name in BOTH.items():
        looks = [m for m in moments if m["placement"] == placement]
        made.append(plots.by_block(
            out, f"{what.replace(' ', '-')}-{placement}",
            [plots.Line(f"step {m['step']}", m[what], placement, dash=dash)
             for m, dash in zip(looks, DASHES)],
            f"{name}: {title} of the stream", y_range=(low / 2, high * 2),
        ))  # fmt: skip
    return made


def on_the_graph(graphs: dict[tuple[str, int], tr.graph.Graph], out: Path) -> Part:
    """Both models side by side, before training and after it, with one scale for all."""
    shown = []
    try:
        for step in (MOMENTS[0], MOMENTS[-1]):
            titles = tuple(f"{name}, step {step}" for name in BOTH.values())
            pair = tr.draw_pair(*(graphs[placement, step] for placement in BOTH), titles=titles,
                                depth=0, fold=False, decades=DECADES)  # fmt: skip
            name = f"gradient-graph-step{step}"
            pair.render(out / f"{name}.svg")
            shown.append(Picture(name, pair.svg(prefix=name), pair.description))
    except RuntimeError as error:  # there is no layout program: the rest of the lesson needs none
        return f"The graphs could not be drawn here. {error}"
    return Figure(shown, f"The gradient in both models before training and after {MOMENTS[-1]} "
                  "steps, on the same batch. Rest the mouse on an edge for its norm.")  # fmt: skip


def lesson(source: text.Text, out: Path, seed: int = 0, setting: Setting = SETTING) -> Section:
    """Measure, draw and explain."""
    moments, graphs = in_training(source, setting.but(seed=seed))
    collapse = pictures(moments, "collapse", "1 - cosine", out)
    gradient = pictures(moments, "stream gradient", "gradient norm", out)
    parts: list[Part] = [
        told(__doc__, 0, 1),
        Figure([*collapse, *gradient], f"{setting.blocks} blocks, learning rate {setting.lr:g}: "
               "before training (solid), after a few steps of Adam (dashed) and after more "
               "(dotted). Both stacks have one scale."),
        told(__doc__, 1, 2),
        on_the_graph(graphs, out),
        told(__doc__, 2),
    ]  # fmt: skip
    title = "What training does to it"
    return Section("gradient_flow", title, parts, [finding(moments)], moments)


def main(argv: list[str] | None = None) -> int:
    known = command.options("gradient_flow", __doc__, seed=0, text="")
    return command.run(known, argv, lambda a: lesson(text.load(a.text), a.out, a.seed))


if __name__ == "__main__":
    raise SystemExit(main())
