"""How a lesson is called: its text with --help, the options that lessons share, what it prints."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from demos.folder import alone_in
from demos.report import Section, write_page, write_records


def parser(name: str, lesson: str | None) -> argparse.ArgumentParser:
    """A parser that shows the lesson's text with --help."""
    return argparse.ArgumentParser(
        prog=f"python -m demos.{name}",
        description=lesson,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def options(name: str, lesson: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser that knows --out, and an option for each of `defaults`: --seed, --steps, --text."""
    known = parser(name, lesson)
    known.add_argument("--out", type=Path, default=Path("out") / name, help="where output goes")
    for option, default in defaults.items():
        kind: Any = type(default)
        if kind is int:
            kind = whole_number(0 if option == "seed" else 1)
        words = "default: Python's own source" if option == "text" else f"default: {default}"
        known.add_argument(f"--{option}", type=kind, default=default, help=words)
    return known


def whole_number(least: int) -> Callable[[str], int]:
    """For argparse: an integer of `least` or more."""

    def parse(given: str) -> int:
        try:
            if int(given) >= least:
                return int(given)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {given}")

    return parse


@contextlib.contextmanager
def refusals(known: argparse.ArgumentParser) -> Iterator[None]:
    """What can't be done with these options is said in a line, as of a wrong option."""
    try:
        yield
    except (ValueError, OSError) as error:
        known.error(str(error))
    except KeyboardInterrupt:
        print("stopped")
        raise SystemExit(130) from None


def run(
    known: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    lesson: Callable[[argparse.Namespace], Section],
) -> int:
    """Run a lesson with the options that were given: page, numbers, findings; the exit status."""
    args = known.parse_args(argv)
    with refusals(known), alone_in(args.out):
        section = lesson(args)
        section.smaller = smaller(known, args)
        write_records(args.out / "measurements.jsonl", [section])
        page = write_page(args.out / "report.html", section.title, [section])
    for finding in section.findings:
        print(finding.line(section.smaller))
    print(f"page, pictures and numbers: {page}")
    return 0


def smaller(known: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """In what a run is smaller than the lesson, for which the claims are made.

    >>> small = options("compare", "", steps=300, seed=1)
    >>> smaller(small, small.parse_args(["--steps", "20", "--seed", "0"]))
    '--steps 20 instead of 300'
    """
    numbers = {key: n for key, n in vars(args).items() if type(n) is int and key != "seed"}
    return ", ".join(
        f"--{key} {n} instead of {known.get_default(key)}"
        for key, n in numbers.items()
        if n < known.get_default(key)
    )
