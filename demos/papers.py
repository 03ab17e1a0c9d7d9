"""What the papers claim, measured here: one command a claim.

    python -m demos.papers                     lists the claims
    python -m demos.papers C5                  measures one: numbers, law, verdict, plot
    python -m demos.papers all                 all of them; less than 15 minutes on two cores
    python -m demos.papers all --quick         those that need no training; less than a minute

A claim is a sentence with its source, a function that measures, and conditions on the numbers
(`demos/claims/`). Whether it holds is found out anew in each run. X1, X2, ... are claims of papers
that do not reproduce at this size; they are measured all the same, and said to be such.

Numbers go to measurements.jsonl, one line a claim; plots and a page, report.html, stand beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from demos import command, pictures, report
from demos.claims import CLAIMS, NOT_HERE, NOT_MEASURED
from demos.claims.claim import Claim, Numbers, Verdict, judge, shown
from demos.claims.lab import Job, Lab, in_processes, train_all
from demos.folder import alone_in
from demos.plots import Picture
from demos.report import Figure, Finding, Part, Section, Table

EVERY = {**CLAIMS, **NOT_HERE}


@dataclass
class Outcome:
    """A claim that has been measured in this run."""

    id: str
    numbers: Numbers
    verdicts: list[Verdict]
    pictures: list[Picture]
    cpu: float  # seconds of one core, for measuring and drawing
    training: float  # for its trainings, some of which other claims use, too

    @property
    def claim(self) -> Claim:
        return EVERY[self.id]

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)

    def text(self) -> str:
        """Claim, source, numbers, verdict: for the terminal."""
        head = f"{self.id}  {self.claim.text}\n    {self.claim.source}\n    {self.claim.setup}"
        lines = [f"    {'ok ' if v.holds else 'NO '} {v.what}: {v.line()}" for v in self.verdicts]
        note = [f"    {self.claim.note}"] if self.claim.note else []
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        last = f"    -> {verdict}{' at this size' if self.id in NOT_HERE else ''} "
        return "\n".join([head, *lines, *note, f"{last}({self.took()})"])

    def took(self) -> str:
        """What it cost."""
        trained = f", its trainings {self.training:.0f} s" if self.claim.jobs else ""
        return f"{self.cpu:.1f} s of CPU{trained}"

    def record(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            "claim": self.id, "text": self.claim.text, "source": self.claim.source,
            "setup": self.claim.setup, "holds": self.holds, "cpu_seconds": round(self.cpu, 2),
            "training_cpu_seconds": round(self.training, 2),
            "checks": [
                {**v._asdict(), "measured": np.asarray(v.measured, float),
                 "expected": v.expected if isinstance(v.expected, str)
                 else np.asarray(v.expected, float)}
                for v in self.verdicts
            ],
        }  # fmt: skip


def measured(claim_id: str, results: dict[Job, Any], out: Path) -> Outcome:
    """Measure, judge and draw one claim, given what its trainings gave."""
    claim, start = EVERY[claim_id], time.process_time()
    numbers = claim.measure(Lab(results))
    verdicts, drawn = judge(claim, numbers), claim.draw(numbers, out)
    cpu, training = time.process_time() - start, sum(r["cpu"] for r in results.values())
    return Outcome(claim_id, numbers, verdicts, drawn, cpu, training)


def run(ids: Sequence[str], with_pictures: bool, out: Path, processes: int) -> list[Section]:
    """Train what is needed, measure, print, and make the sections of the page."""
    wanted = [job for claim_id in ids for job in EVERY[claim_id].jobs]
    results = train_all(wanted + (pictures.jobs() if with_pictures else []), processes)
    calls = [
        (claim_id, {job: results[job] for job in EVERY[claim_id].jobs}, out) for claim_id in ids
    ]
    outcomes: dict[str, Outcome] = {}
    with tqdm(total=len(ids), desc="claims", unit="claim", leave=False, disable=None) as bar:
        for (claim_id, *_), outcome in in_processes(measured, calls, processes):
            outcomes[claim_id] = outcome
            bar.write(outcome.text(), file=sys.stdout)
            bar.update()
    known = {claim_id: outcome.numbers for claim_id, outcome in outcomes.items()}
    drawn = pictures.all_three(Lab(results), known, out) if with_pictures else []
    return [*picture_section(drawn), *(section(outcomes[claim_id]) for claim_id in ids)]


def picture_section(drawn: list[Picture]) -> list[Section]:
    if not drawn:
        return []
    figures: list[Part] = [Figure([picture], picture.words) for picture in drawn]
    return [Section("pictures", "Three pictures to remember", figures)]


def section(outcome: Outcome) -> Section:
    """A claim's part of the page."""
    claim = outcome.claim
    head = ("what", "measured", "expected", "tolerance", "")
    rows = [
        (v.what, shown(v.measured), shown(v.expected), v.tolerance, "holds" if v.holds else "no")
        for v in outcome.verdicts
    ]
    setup = f"{_sentence(claim.setup)} ({outcome.took()})"
    parts: list[Part] = [f"{claim.text}.\n\n{_sentence(claim.source)}"]
    if outcome.pictures:
        parts.append(Figure(outcome.pictures, setup))
    parts.append(Table(head, rows, "" if outcome.pictures else setup))
    if claim.note:
        parts.append(claim.note)
    held = f"{sum(v.holds for v in outcome.verdicts)} of {len(outcome.verdicts)} checks"
    held += ", as was to be expected at this size" if claim.id in NOT_HERE else ""
    finding = Finding(claim.text, held, outcome.holds)
    return Section(claim.id, f"{claim.id}: {claim.title}", parts, [finding], [outcome.record()])


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def not_measured() -> Section:
    """The claims that are not measured here, and why."""
    table = Table(("claim", "source", "why not here"), NOT_MEASURED, "")
    return Section("not-measured", "Claimed by papers, not measured here", [table])


LEAD = """
Each claim has a source, a way to measure it and conditions on the numbers. The numbers on this
page were measured in one run on one machine; a claim holds if they meet its conditions.

Where a law is given it was derived, not fitted (demos/laws.py). Other numbers that are expected are
those of a paper, or of an independent implementation in PyTorch. C1 to C24 are expected to hold.
X1, X2, ... are claims of papers that do not reproduce with models of this size, or in this setting.
"""


def arguments() -> argparse.ArgumentParser:
    parser = command.options("papers", __doc__)
    parser.add_argument(
        "claims", nargs="*", metavar="CLAIM", help=f"all, pictures, or some of {' '.join(EVERY)}"
    )
    parser.add_argument("--quick", action="store_true", help="only claims that need no training")
    parser.add_argument("--processes", type=int, default=2, help="default: 2")
    return parser


def chosen(names: Sequence[str], quick: bool) -> tuple[list[str], bool]:
    """The ids of the claims that are asked for, and whether the pictures are."""
    known = {claim_id.lower(): claim_id for claim_id in EVERY}
    unknown = [name for name in names if name.lower() not in {*known, "all", "pictures"}]
    if unknown:
        raise ValueError(f"there is no claim {', '.join(unknown)}: choose from {' '.join(EVERY)}")
    everything = "all" in names or (quick and not names)
    ids = list(EVERY) if everything else [known[n.lower()] for n in names if n != "pictures"]
    if quick:
        ids = [claim_id for claim_id in ids if not EVERY[claim_id].trains]
    return ids, ("pictures" in names or everything) and not quick


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    args = parser.parse_args(argv)
    try:
        ids, with_pictures = chosen(args.claims, args.quick)
    except ValueError as error:
        parser.error(str(error))
    if not ids and not with_pictures:
        for claim in EVERY.values():
            print(f"{claim.id:4}{claim.title}: {'(trains) ' if claim.trains else ''}{claim.text}")
        print("\npython -m demos.papers C5, or all, or all --quick")
        return 0
    start = time.perf_counter()
    with command.refusals(parser), alone_in(args.out):
        sections = run(ids, with_pictures, args.out, args.processes)
        report.write_records(args.out / "measurements.jsonl", sections)
        sections = [*sections, not_measured()]
        page = report.write_page(args.out / "report.html", "What the papers claim", sections, LEAD)
    print(f"page, plots and numbers: {page} ({time.perf_counter() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
