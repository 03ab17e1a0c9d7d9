"""Real text that every machine with Python has: the source of its standard library.

A character-level language model needs text. The sixteen modules below are about a million
characters of English and Python, and any file can take their place (`--text FILE`).

Two numbers say how well one can predict the text without understanding it, in nats (a nat is
1 / ln 2 = 1.44 bits): the unigram entropy, for a guess that knows only how frequent each character
is, and the bigram entropy, for one that also sees the character before.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MODULES = (
    "argparse", "configparser", "dataclasses", "difflib", "doctest", "enum", "inspect", "mailbox",
    "optparse", "pdb", "pickle", "pickletools", "shutil", "subprocess", "tarfile", "threading",
)  # fmt: skip
WINDOWS = 512  # how many pieces of the validation text a loss is measured on


@dataclass(frozen=True)
class Text:
    """A text as numbers: its first nine tenths to learn from, the rest to be tested on."""

    name: str
    symbols: str  # the vocabulary: symbol number i is symbols[i]
    train: Ints
    val: Ints

    @staticmethod
    def of(name: str, characters: str) -> Text:
        """Number the characters of a text and split it."""
        symbols = "".join(sorted(set(characters)))
        numbers = encode(symbols, characters)
        split = int(0.9 * len(numbers))
        return Text(name, symbols, numbers[:split], numbers[split:])

    def check_context(self, context: int) -> None:
        """Both parts must hold at least one window of `context` characters and its next one."""
        shorter = min(len(self.train), len(self.val))
        if shorter < context + 1:
            raise ValueError(
                f"text: {self.name} is too short: its parts have {len(self.train)} and "
                f"{len(self.val)} characters, a context of {context} needs {context + 1} in each: "
                "give a longer text or a smaller context"
            )

    def batch(self, rng: np.random.Generator, size: int, context: int) -> tuple[Ints, Ints]:
        """Random windows of the training part, and the same windows one character further on."""
        starts = rng.integers(0, len(self.train) - context, size)
        return _windows(self.train, starts, context)

    def windows(self, context: int, count: int = WINDOWS) -> tuple[Ints, Ints]:
        """Evenly spaced windows of the validation part: every model is tested on the same."""
        starts = np.linspace(0, len(self.val) - context - 1, count).astype(np.int64)
        return _windows(self.val, starts, context)

    def unigram_entropy(self, context: int) -> float:
        """Loss on the windows of a guess from the frequency of each character in training."""
        return self.unigram_loss(self.windows(context)[1])

    def bigram_entropy(self, context: int) -> float:
        """Loss on the windows of a guess that knows the character before."""
        return self.bigram_loss(*self.windows(context))

    def unigram_loss(self, targets: Ints) -> float:
        """What the first of these guesses loses on other characters."""
        counts = np.bincount(self.train, minlength=len(self.symbols)) + 0.05
        return float(-np.log(counts / counts.sum())[targets].mean())

    def bigram_loss(self, tokens: Ints, targets: Ints) -> float:
        """What the second loses."""
        n = len(self.symbols)
        pairs = np.bincount(self.train[:-1] * n + self.train[1:], minlength=n * n) + 0.05
        table = pairs.reshape(n, n)
        return float(-np.log(table / table.sum(axis=1, keepdims=True))[tokens, targets].mean())


def load(file: str | Path | None = None) -> Text:
    """The standard library's text, or that of a file if there is a name.

    >>> len(load().symbols) > 90
    True
    """
    if not file:
        return Text.of("the Python standard library", "".join(map(_source, MODULES)))
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"text: there is no file {path}: give --text the path of a text file")
    characters = clean(path.read_text(encoding="utf-8", errors="ignore"))
    if not characters:
        raise ValueError(f"text: {path} has no ASCII characters to learn from")
    return Text.of(path.name, characters)


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    source = None if spec is None or spec.loader is None else spec.loader.get_source(module)
    if source is None:
        raise ValueError(
            f"text: this Python has no source of its module {module}: give a text of your own "
            "with --text FILE"
        )
    return clean(source)


def clean(characters: str) -> str:
    r"""ASCII only; a tab becomes four spaces, \r and \f disappear.

    >>> clean("a\tb\r\n\u00e9")
    'a    b\n'
    """
    characters = characters.replace("\t", "    ").replace("\r", "").replace("\f", "")
    return characters.encode("ascii", "ignore").decode("ascii")


def encode(symbols: str, characters: str) -> Ints:
    """Each character's number in the vocabulary.

    >>> encode("abc", "cab")
    array([2, 0, 1])
    """
    number = {symbol: i for i, symbol in enumerate(symbols)}
    unseen = sorted(set(characters) - number.keys())
    if unseen:
        raise ValueError(
            f"text: the model has never seen {', '.join(map(repr, unseen))}: use only the "
            f"{len(symbols)} characters of the text it was trained on"
        )
    return np.array([number[c] for c in characters], dtype=np.int64)


def decode(symbols: str, numbers: npt.ArrayLike) -> str:
    """The characters that have these numbers.

    >>> decode("abc", [2, 0, 1])
    'cab'
    """
    return "".join(symbols[i] for i in np.asarray(numbers))


def _windows(part: Ints, starts: Ints, context: int) -> tuple[Ints, Ints]:
    pieces = part[starts[:, None] + np.arange(context + 1)]
    return pieces[:, :-1], pieces[:, 1:]
