"""All runs below some folders, whatever their state; two of them compared; the card of one.

  python -m scalelab.lab.runs DIR... [--where=...] [--sort=-tokens] [--columns=...] [--csv=FILE]
  python -m scalelab.lab.runs compare RUN_A RUN_B [--points=10] [--figure=FILE.png]
  python -m scalelab.lab.runs card RUN [--to=FILE.md]
  python -m scalelab.lab.runs pack RUN --to=DIR

A line is a pre-training or a fine-tuning; runs that are being written are read as far as they are,
folders that cannot be read are listed with the reason. `pack` adds a finished run, without what is
large, to DIR/runs.tar.xz.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from scalelab.config import cli, pretraining

COMMANDS = ("list", "compare", "card", "pack")
PROGRAM = "python -m scalelab.lab.runs"


def parser() -> cli.Parser:
    """Returns the parser of the command line."""
    made = cli.Parser(
        prog=PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True)
    listing = commands.add_parser(
        "list", allow_abbrev=False, help="the table; also without this word"
    )
    listing.add_argument("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    listing.add_argument(
        "--where",
        default="",
        metavar="CONDITIONS",
        help="such as system=bert,width>=128,status=completed,corpus=*wiki*,loss!=none; any column,"
        " any config field (optim.learning_rate>1e-3); or an expression of pandas'"
        " DataFrame.query, such as 'width >= 128 and system == \"bert\"'",
    )
    listing.add_argument(
        "--sort", default="", metavar="COLUMNS", help="such as system,-tokens: most tokens first"
    )
    listing.add_argument(
        "--columns", metavar="COLUMNS", help="to show, such as run,loss,optim.learning_rate"
    )
    listing.add_argument("--csv", metavar="FILE", type=pathlib.Path, help="write all digits there")
    comparing = commands.add_parser(
        "compare", allow_abbrev=False, help="config, curves and scores of two runs"
    )
    comparing.add_argument("a", metavar="RUN_A", type=pathlib.Path)
    comparing.add_argument("b", metavar="RUN_B", type=pathlib.Path)
    comparing.add_argument("--points", type=int, default=10, help="rows of each table; default: 10")
    comparing.add_argument("--figure", metavar="FILE", type=pathlib.Path, help="draw both curves")
    carding = commands.add_parser("card", allow_abbrev=False, help="a run in Markdown")
    carding.add_argument("run", metavar="RUN", type=pathlib.Path)
    carding.add_argument("--to", metavar="FILE", type=pathlib.Path, help="write it there")
    packing = commands.add_parser(
        "pack", allow_abbrev=False, help="a finished run, small enough for git"
    )
    packing.add_argument("run", metavar="RUN", type=pathlib.Path)
    packing.add_argument("--to", metavar="DIR", type=pathlib.Path, required=True)
    return made


def show(given: argparse.Namespace) -> str:
    """Returns the table that was asked for.

    Raises:
      ValueError: a folder or a column does not exist, or a condition is not written as one.
    """
    from scalelab.lab.load import query, run_table

    frame = run_table.as_frame(run_table.load_runs(given.folders))
    columns = given.columns.split(",") if given.columns else None
    if columns is not None:
        query.check_columns(columns, frame.columns)
    chosen = query.sort(query.where(frame, given.where), given.sort)
    if given.csv:
        given.csv.write_text(query.csv(chosen, columns), encoding="utf-8")
    if chosen.empty:
        return f"no run: 0 of {len(frame)}\n"
    return query.plain(chosen, columns) + f"{len(chosen)} of {len(frame)} runs\n"


def compare(given: argparse.Namespace) -> str:
    """Returns what two runs have in common and what not.

    Raises:
      ValueError: one is no run, cannot be read, or has no metrics.
    """
    from scalelab.lab.compare import pair
    from scalelab.runs import records

    if given.points < 1:
        raise ValueError(f"--points={given.points}: expected at least 1")
    a, b = records.read_run(given.a), records.read_run(given.b)
    text = pair.describe(a, b, pretraining.science_diff(b.config, a.config), given.points)
    if given.figure:
        pair.draw(given.figure, a, b)
    return text


def card(given: argparse.Namespace) -> str:
    """Returns the card of a run, or where it was written.

    Raises:
      ValueError: there is no run, or it cannot be read.
    """
    from scalelab.lab.show import card

    text = card.write(given.run)
    if given.to is None:
        return text
    given.to.write_text(text, encoding="utf-8")
    return f"wrote {given.to}\n"


def pack(given: argparse.Namespace) -> str:
    """Packs a run and returns how large the archive is.

    Raises:
      ValueError: the run is not finished, or the archive has one of its name.
    """
    from scalelab.lab.load import archive

    name = given.run.absolute().name
    added, _ = archive.pack({name: given.run}, given.to)
    if not added:
        raise ValueError(f"{given.to / archive.NAME} has a run named {name} already")
    size = (given.to / archive.NAME).stat().st_size
    return f"{given.to / archive.NAME}: {size / 1000:,.1f} kB\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake in its arguments or folders is one message and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] not in (*COMMANDS, "-h", "--help"):
        words.insert(0, "list")
    given = parser().parse_args(words)
    with cli.one_message("nothing was changed"):
        run = {"list": show, "compare": compare, "card": card, "pack": pack}[given.command]
        print(run(given), end="", flush=True)


if __name__ == "__main__":
    main()
