"""Are two systems different? Task by task, with intervals and corrected p-values.

  python -m scalelab.eval.compare RUN_A RUN_B [--allow] [--csv=FILE]

RUN_A and RUN_B are folders that fine-tunings left: of many tasks (<task>/seed<k>) or of one
(seed<k>). A system that was pre-trained several times has several folders, joined by commas: the
Multi-Bootstrap then resamples the pre-trainings too, and only then does the answer hold for the
system and not for these weights alone. Differences are B minus A; `scalelab.lab.scores.comparison`
says how they are tested.
"""

import argparse
import pathlib
from collections.abc import Sequence

from scalelab.config import cli
from scalelab.lab import tables
from scalelab.lab.scores import comparison
from scalelab.lab.scores.comparison import Claim

HEADER = ("task", "metric", "A", "B", "B - A", "95% interval", "p", "p (Holm)", "B is")
HEADER += ("detectable",)


def cells(claim: Claim) -> list[str]:
    """A line of the table."""
    d = claim.difference
    points = [f"{100 * x:.1f}" for x in (claim.a, claim.b)]
    ends = f"[{100 * d.low:+.1f}, {100 * d.high:+.1f}]"
    corrected = "" if claim.corrected is None else f"{claim.corrected:.4f}"
    known = None if min(claim.num_seeds) == 1 else d.detectable
    detectable = "-" if known is None else f"{100 * known:.1f}" if known < 1 else "none"
    line = [claim.label, claim.metric, *points, f"{100 * d.value:+.1f}", ends]
    return [*line, f"{d.p_value:.4f}", corrected, claim.verdict, detectable]


def csv(claims: Sequence[Claim], said: Sequence[str]) -> str:
    """The table for programs: fractions with all digits, and in each row what is said below it."""
    header = ["name", "task", "split", "metric", "a", "b", "difference", "low", "high", "p", "holm"]
    header += ["verdict", "standard_error", "detectable", "paired", "seeds_a", "seeds_b"]
    rows = []
    for c in claims:
        d = c.difference
        row = [c.label, c.task, c.split, c.metric, c.a, c.b, d.value, d.low, d.high, d.p_value]
        detectable = d.detectable if min(c.num_seeds) > 1 else None
        row += [c.corrected, c.verdict, d.standard_error, detectable, c.paired, *c.num_seeds]
        rows.append([*row, " ".join(said)])
    header.append("footnotes")
    return tables.comma_separated(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The program; a mistake in its arguments or folders is one message and exit code 2."""
    parser = cli.Parser(
        prog="python -m scalelab.eval.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="RUN_A", help="folder of system A, or several with commas")
    parser.add_argument("b", metavar="RUN_B", help="folder of system B, likewise")
    parser.add_argument("--allow", action="store_true", help="compare though recipes differ")
    parser.add_argument("--csv", metavar="FILE", type=pathlib.Path, help="write the table there")
    given = parser.parse_args(arguments)
    with cli.one_message("nothing was written"):
        if given.csv and not given.csv.absolute().parent.is_dir():
            raise ValueError(f"--csv={given.csv}: there is no folder {given.csv.parent}")
        if given.csv and given.csv.is_dir():
            raise ValueError(f"--csv={given.csv}: expected a file, not a folder")
        claims, said = comparison.compare(
            comparison.open_system(given.a),
            comparison.open_system(given.b),
            allow_recipe=given.allow,
        )
        if given.csv:
            given.csv.write_text(csv(claims, said), encoding="utf-8")
        print(f"A: {given.a}\nB: {given.b}\n")
        print(tables.plain(HEADER, [cells(claim) for claim in claims], 2), end="")
        print("".join(f"* {note}\n" for note in said), end="")


if __name__ == "__main__":
    main()
