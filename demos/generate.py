"""Text from a checkpoint: one character at a time.

The model gives each symbol of its vocabulary a number, a logit. softmax(logits / temperature) makes
them probabilities, one symbol is drawn, put behind the text, and the model is asked again. A low
temperature sharpens the probabilities (0: always the likeliest symbol), a high one flattens them;
top-k draws among the k likeliest only.

A model of six blocks that has seen a few hundred batches writes no Python. But it has learned which
letters follow each other, how words are spaced and that lines are indented, and a model that is
stuck at the unigram entropy writes letters in their right frequency and no right order.

    python -m demos.train_stacks
    python -m demos.generate out/train_stacks/checkpoint.npz --prompt "def "
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tinyres as tr
from demos import command, text
from demos.training import Setting


def load_model(path: str | Path) -> tuple[tr.nn.TransformerLM, str]:
    """The model of a checkpoint of train_stacks, and its vocabulary."""
    state = tr.load(path)
    symbols = state.get("symbols")
    if symbols is None:
        raise ValueError(f"generate: {path} was not trained on characters: train with --task chars")
    s = Setting(**state["setting"])
    model = tr.nn.TransformerLM(
        len(symbols), s.d_model, s.heads, s.blocks, s.context, s.d_ff, placement=s.placement
    )
    model.load_state_dict(state["model"])
    return model, symbols


def sample(model: tr.nn.TransformerLM, symbols: str, prompt: str, count: int, **how: Any) -> str:
    """`prompt` continued by `count` characters; `how` goes to `TransformerLM.generate`."""
    return text.decode(symbols, model.generate(text.encode(symbols, prompt), count, **how))


def opening(symbols: str) -> str:
    """What a text may begin after: the end of a line, where the vocabulary has one.

    >>> opening("abc")
    'a'
    """
    return "\n" if "\n" in symbols else symbols[0]


def options() -> argparse.ArgumentParser:
    """What to continue, and how the symbols are drawn."""
    known = command.parser("generate", __doc__)
    add = known.add_argument
    add("checkpoint", nargs="?", default="out/train_stacks/checkpoint.npz",
        help="default: %(default)s")  # fmt: skip
    add("--prompt", help="how the text begins; default: a new line")
    add("--count", type=command.whole_number(1), default=400, help="characters; default: 400")
    add("--temperature", type=float, default=0.8, help="default: 0.8")
    add("--top-k", type=int, metavar="K", help="draw among the K likeliest; default: among all")
    add("--seed", type=command.whole_number(0), default=0, help="default: 0")
    add("--out", type=Path, default=Path("out/generate"), help="default: %(default)s")
    return known


def main(argv: list[str] | None = None) -> int:
    known = options()
    args = known.parse_args(argv)
    if not Path(args.checkpoint).exists():
        known.error(f"there is no {args.checkpoint}: run python -m demos.train_stacks first")
    with command.refusals(known):
        model, symbols = load_model(args.checkpoint)
        prompt = opening(symbols) if args.prompt is None else args.prompt
        written = sample(
            model, symbols, prompt, args.count,
            temperature=args.temperature, top_k=args.top_k, rng=args.seed,
        )  # fmt: skip
        print(written)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "text.txt").write_text(written + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
