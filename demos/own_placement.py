"""A placement of your own: a class with one line, trained and drawn.

Pre-LN puts the norm before the sublayer, Post-LN after the addition. There is a third place: at the
end of the branch, behind the sublayer and before the addition,

    y = x + norm(F(x))

As in Pre-LN the stream is only ever added to, and what is added has a fixed size whatever F does.
But F now sees the stream as it is, and the stream grows from block to block. (Swin Transformer v2
and OLMo 2 put it there: Liu et al. 2022; OLMo team 2025.)

Write the rule as `forward` of a subclass of `tr.nn.Residual`, with `self.sublayer` and `self.norm`,
and give the class where a name stands otherwise: `TransformerLM(..., placement=NormLast)`.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import command, plots, text
from demos.report import Figure, Finding, Part, Sample, Section, Table, told
from demos.training import Setting, make_task, train


class NormLast(tr.nn.Residual):
    """y = x + norm(F(x)): what is added has a fixed size."""

    final_norm = True

    def forward(self, x: tr.Tensor) -> tr.Tensor:
        return x + self.norm(self.sublayer(x))


RULES = {
    "other": ("NormLast", NormLast),
    "pre": ("Pre-LN", tr.nn.PreLN),
    "post": ("Post-LN", tr.nn.PostLN),
}


def look(out: Path) -> tuple[tr.graph.Drawing, dict[str, Any]]:
    """A picture of one block, and what flows through twelve before any training."""
    block = tr.nn.TransformerBlock(16, heads=2, placement=NormLast, rng=0)
    x = tr.Tensor(np.ones((1, 4, 16), np.float32), requires_grad=True)
    drawing = tr.draw(block(x), depth=1, title="NormLast: x + norm(F(x))", names={"x": x})
    drawing.render(out / "own-placement.svg")
    model = tr.nn.TransformerLM(65, 32, 2, blocks=12, context=16, placement=NormLast, rng=0)
    tokens, targets = np.random.default_rng(0).integers(0, 65, (2, 8, 16))
    return drawing, tr.probe.report(model, (tokens, targets))


def table(probes: dict[str, Any]) -> Table:
    """The probes that have a value at every place of the stream, at five of them."""
    places = [0, 3, 6, 9, 12]
    rows = [
        (f"`{name}`", *(f"{values[place]:.3g}" for place in places))
        for name, values in probes.items()
        if values.shape == (13,)
    ]
    head = ("probe", *(f"after {place} blocks" for place in places))
    return Table(head, rows, "What flows through 12 blocks before training (`tr.probe.report`).")


def lesson(source: text.Text, out: Path, setting: Setting) -> Section:
    """Train it beside Pre-LN and Post-LN, and draw it."""
    task = make_task(setting, source)
    runs = {name: train(setting, task, label, rule) for name, (label, rule) in RULES.items()}
    loss = {name: run.result["val_loss"] for name, run in runs.items()}
    rms = {
        name: tr.probe.stream_rms(run.trainer.model, task.held_out())[-1]
        for name, run in runs.items()
    }
    unigram = source.unigram_entropy(setting.context)
    curves = [
        plots.Line(run.label, plots.running_mean(run.losses), name, faint=run.losses)
        for name, run in runs.items()
    ]
    losses = plots.lines(
        out, "own-placement-loss", curves, title="Loss in nats, predicting text", x_label="step",
        words="Training loss by step of three placements", levels=[("unigram", unigram)],
        y_range=(2.0, 4.5),
    )  # fmt: skip
    rows = [(run.label, f"{loss[name]:.3f}", f"{rms[name]:.2f}") for name, run in runs.items()]
    drawing, probes = look(out)
    svg, words = drawing.svg(prefix="own-placement"), "Norms stand at the ends of the branches"
    source_of = "\n\n".join(map(inspect.getsource, (NormLast, look)))
    parts: list[Part] = [
        told(__doc__, 0),
        Sample(source_of, "All that a placement is; its picture and what the probes say of it."),
        Figure([plots.Picture("own-placement", svg, words)],
               "The orange line is unbroken, as in Pre-LN."),
        table(probes),
        Figure([losses], f"{setting.blocks} blocks, learning rate {setting.lr:g}, no warm-up."),
        Table(("placement", "loss on unseen text", "RMS of the stream at the top"), rows,
              f"After {setting.steps} steps."),
    ]  # fmt: skip
    finding = Finding(
        "A norm at the end of the branch leaves the stream alone, and the stack learns",
        f"loss {loss['other']:.3f}; Pre-LN {loss['pre']:.3f}, Post-LN {loss['post']:.3f}, "
        f"unigram {unigram:.3f}",
        loss["other"] < unigram - 0.3,
        f"at least 0.3 below the unigram entropy, {unigram - 0.3:.3f}",
    )
    records = [{"placement": r.label, **r.result, "top rms": rms[name]} for name, r in runs.items()]
    return Section("own_placement", "A placement of your own", parts, [finding], records)


def main(argv: list[str] | None = None) -> int:
    known = command.options("own_placement", __doc__, seed=0, steps=150, text="")
    return command.run(
        known, argv,
        lambda a: lesson(text.load(a.text), a.out, Setting(seed=a.seed, steps=a.steps)),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
