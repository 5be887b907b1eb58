"""All runs below some folders, whatever their state; two of them compared; the card of one.

  python -m scalelab.lab.runs DIR... [--where=...] [--sort=-tokens] [--columns=...] [--csv=FILE]
  python -m scalelab.lab.runs compare RUN_A RUN_B [--points=10] [--figure=FILE.png]
  python -m scalelab.lab.runs card RUN [--to=FILE.md]
  python -m scalelab.lab.runs pack RUN --to=DIR

A line is a pre-training or a fine-tuning; runs that are being written are read as far as they are,
damaged folders are listed as such. `pack` copies a finished run without what is large, for git.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from scalelab.config import cli, pretraining
from scalelab.lab.all_runs import run_query, run_table

COMMANDS = ("list", "compare", "card", "pack")
PROGRAM = "python -m scalelab.lab.runs"


def parser() -> cli.Parser:
    """The command line."""
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
        help="such as system=bert,width>=128,status=completed,corpus=*wiki*,loss!=none;"
        " any column, any config field (optim.learning_rate>1e-3)",
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
    """The table that was asked for.

    Raises:
      ValueError: a folder or a column does not exist, or a condition is not written as one.
    """
    rows = run_table.read(given.folders)
    columns = given.columns.split(",") if given.columns else None
    if columns is not None:
        run_query.check_columns(columns, run_query.columns_of(rows))
    chosen = run_query.sort(run_query.where(rows, given.where), given.sort)
    if given.csv:
        given.csv.write_text(run_query.csv(chosen, columns), encoding="utf-8")
    if not chosen:
        return f"no run: 0 of {len(rows)}\n"
    return run_query.plain(chosen, columns) + f"{len(chosen)} of {len(rows)} runs\n"


def compare(given: argparse.Namespace) -> str:
    """What two runs have in common and what not.

    Raises:
      ValueError: one is no run, is damaged, or has no metrics.
    """
    from scalelab.lab.all_runs import run_pair
    from scalelab.lab.reading import run_held

    if given.points < 1:
        raise ValueError(f"--points={given.points}: expected at least 1")
    a, b = run_held.opened(given.a), run_held.opened(given.b)
    said = run_pair.text(a, b, pretraining.science_diff(b.config, a.config), given.points)
    if given.figure:
        run_pair.draw(given.figure, a, b)
    return said


def card(given: argparse.Namespace) -> str:
    """The card of a run, or where it was written.

    Raises:
      ValueError: there is no run, or it is damaged.
    """
    from scalelab.lab.reading import run_held
    from scalelab.lab.show import card

    run_held.opened(given.run)
    text = card.write(given.run)
    if given.to is None:
        return text
    given.to.write_text(text, encoding="utf-8")
    return f"wrote {given.to}\n"


def pack(given: argparse.Namespace) -> str:
    """Packs a run and says how large it is.

    Raises:
      ValueError: it is not finished, or the folder exists.
    """
    from scalelab.lab.reading import compact

    to = compact.pack(given.run, given.to)
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    return f"{to}: {size / 1000:,.1f} kB\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The program; a mistake in its arguments or folders is one message and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] not in (*COMMANDS, "-h", "--help"):
        words.insert(0, "list")
    given = parser().parse_args(words)
    with cli.one_message("nothing was changed"):
        said = {"list": show, "compare": compare, "card": card, "pack": pack}[given.command](given)
        print(said, end="", flush=True)


if __name__ == "__main__":
    main()
