"""Makes two self-labelled probe tasks from a corpus, in GLUE's layout.

  python -m scalelab.data.probes --corpus=builtin --to=DIR
  python -m scalelab.eval.same_document --init=RUN --workdir=WORKDIR --data=DIR
  python -m scalelab.eval.swapped_words --init=RUN --workdir=WORKDIR --data=DIR

same_document: are two passages from one document? swapped_words: were two words of a sentence
exchanged? The tasks need no labelled corpus and no download. They show whether a net has learnt
anything that transfers, and are no benchmark. scalelab/data/probe_rows.py explains how rows are
made without giving the label away.

The documents are those of the corpus's training split, which nets pre-trained on it have read,
without the labels. They come from the cache of prepared data if a training has made it. DIR gets
SameDocument/ and SwappedWords/, each with train.tsv and dev.tsv, and probes.json with the
arguments. Equal arguments give equal files.
"""

import argparse
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalelab.config import cli
from scalelab.data import probe_rows
from scalelab.data.probe_rows import Row
from scalelab.eval import same_document, swapped_words
from scalelab.tasks.task import Task

MAKERS = {
    same_document.TASK.name: (same_document.TASK, probe_rows.same_document),
    swapped_words.TASK.name: (swapped_words.TASK, probe_rows.swapped_words),
}
GROUP_ROWS = 4  # the largest group of rows that belong together
ABOUT = "probes.json"


def make(
    documents: Iterable[str], num_train: int, num_dev: int, seed: int
) -> dict[str, dict[str, list[Row]]]:
    """Makes the rows of both tasks.

    Args:
      documents: a sentence a line.
      num_train: rows of a training set, a multiple of 4.
      num_dev: rows of a dev set, likewise; it does not depend on `num_train`.
      seed: of all draws.

    Returns:
      Task name -> split -> rows.

    Raises:
      ValueError: a number is no multiple of 4, or there are too few documents.
    """
    for name, num in (("num_train", num_train), ("num_dev", num_dev)):
        if num < GROUP_ROWS or num % GROUP_ROWS:
            raise ValueError(f"{name}: expected a multiple of {GROUP_ROWS}, got {num}")
    drawn = probe_rows.draw(documents, seed)
    made = {}
    for name, (_, make_rows) in MAKERS.items():
        try:
            made[name] = make_rows(drawn, {"dev": num_dev, "train": num_train}, seed)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return made


def table(task: Task, rows: Sequence[Row]) -> str:
    """Formats rows as a file of GLUE: a line of column names, then tab-separated fields."""
    assert task.labels is not None
    lines = ["\t".join(("index", *task.columns.names))]
    lines += [
        "\t".join((str(index), *row.texts, task.labels[row.label]))
        for index, row in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


def write(
    folder: pathlib.Path, made: Mapping[str, Mapping[str, Sequence[Row]]], about: Mapping[str, Any]
) -> None:
    """Writes the folder of both tasks, all of it or nothing.

    Args:
      folder: absent or empty.
      made: from `make`.
      about: the corpus and arguments, for probes.json.

    Raises:
      OSError: it cannot be written, or something is in it.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part-{uuid.uuid4().hex[:8]}")
    try:
        for name, splits in made.items():
            task = MAKERS[name][0]
            (part / task.folder).mkdir(parents=True)
            for split, rows in splits.items():
                content = table(task, rows).encode()  # bytes: a line feed everywhere
                (part / task.folder / f"{split}.tsv").write_bytes(content)
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        (part / ABOUT).write_text(text, encoding="utf-8")
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_made(folder: pathlib.Path, about: Mapping[str, Any]) -> bool:
    """Returns True if a folder holds these probes; False if it is absent or empty.

    Raises:
      ValueError: something else is in it.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        differing = [
            f"{key} {found[key]!r}, not {value!r}"
            for key, value in about.items()
            if found[key] != value and key != "corpus"  # may have moved: "sentences" has its hash
        ]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"--to={folder} is in use: choose another folder, or empty it") from None
    if differing:
        raise ValueError(
            f"--to={folder} holds probes with {'; '.join(differing)}: choose another folder, or"
            " delete it"
        )
    return True


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser(
        prog="python -m scalelab.data.probes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--corpus", required=True, help="as in a training: builtin, wikitext:DIR")
    made.add_argument("--to", required=True, type=pathlib.Path, help="folder to make")
    for name, default, text in (
        ("num_train", 2000, "rows of each training set, a multiple of 4"),
        ("num_dev", 500, "rows of each dev set, a multiple of 4"),
        ("seed", 0, "of all draws"),
    ):
        text = f"{text}; default: {default}"
        made.add_argument(f"--{name}", type=_number, metavar="N", default=default, help=text)
    made.add_argument(
        "--cache_dir", default="~/.cache/scalelab", help="prepared data; default: %(default)s"
    )
    made.add_argument(
        "--valid_rate",
        type=float,
        default=0.005,
        help="as in the training: share of the documents for validation, where the corpus has no"
        " such split; default: %(default)s",
    )
    made.add_argument(
        "--errors",
        choices=("strict", "replace"),
        default="strict",
        help="invalid UTF-8: stop, or insert a replacement character; default: strict",
    )
    return made


def run(given: argparse.Namespace) -> None:
    """Makes the probes.

    Raises:
      ValueError: corpus, folder or numbers do not allow it.
      OSError: cache or folder cannot be written.
    """
    from scalelab.data import prepare  # after the arguments, so that --help answers at once
    from scalelab.data.corpora import open_corpus
    from scalelab.helpers.progress import show_bar

    corpus = open_corpus(given.corpus, errors=given.errors, valid_rate=given.valid_rate)
    key = prepare.sentences_key(corpus)
    about = {
        "what": "self-labelled probe tasks of scalelab, no benchmark",
        "corpus": given.corpus,
        "sentences": key,
        "rules": probe_rows.VERSION,
        "seed": given.seed,
        "num_train": given.num_train,
        "num_dev": given.num_dev,
    }
    if is_made(given.to, about):
        print(f"{given.to} holds these probes already")
        return
    path = prepare.prepare_sentences(corpus, key, given.cache_dir, 2, True) / "train.txt"
    with show_bar("documents", path.stat().st_size, show=True) as tick:
        documents = prepare.read_sentences(path, tick)
        made = make(documents, given.num_train, given.num_dev, given.seed)
    write(given.to, made, about)
    for name, splits in made.items():
        task = MAKERS[name][0]
        sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in splits.items())
        print(f"wrote {given.to / task.folder}: {sizes} rows, half of them {task.labels[1]}")


def main(arguments: list[str] | None = None) -> None:
    """Runs the program; a mistake in arguments or corpus is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("nothing was written"):
        try:
            run(given)
        except (ValueError, OSError) as error:  # they name flags of trainings
            text = str(error).replace("--config.data.", "--").replace("--config.machine.", "--")
            raise ValueError(text) from error


if __name__ == "__main__":
    main()
