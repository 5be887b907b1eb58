"""Makes two self-labelled probe tasks from a corpus, in GLUE's layout.

  python -m scalelab.data.probes --corpus=builtin --to=DIR
  python -m scalelab.eval.same_document --init=RUN --workdir=WORKDIR --data=DIR
  python -m scalelab.eval.swapped_words --init=RUN --workdir=WORKDIR --data=DIR

same_document: are two passages from one document? swapped_words: were two words of a sentence
exchanged? The labels follow from how a row was made; nobody has judged them. The tasks show whether
a net has learnt topics and word order, and are no benchmark.

The documents are those of the corpus's training split, which nets pre-trained on it have read,
without the labels. They come from the cache of prepared data if a training has made it. DIR gets
SameDocument/ and SwappedWords/, each with train.tsv and dev.tsv, and probes.json with the
arguments. Equal arguments give equal files.

scalelab/data/probe_rows.py explains how rows are made without giving the label away.
"""

import argparse
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Mapping, Sequence

from scalelab.config import cli
from scalelab.data import probe_rows
from scalelab.data.probe_rows import Row
from scalelab.eval import same_document, swapped_words
from scalelab.runs import json_files

TASKS = {task.name: task for task in (same_document.TASK, swapped_words.TASK)}
ABOUT = "probes.json"
MOST_BYTES = 1 << 26  # of text that is kept in memory


def make(
    documents: Iterable[str], num_train: int, num_dev: int, seed: int, share: float = 1.0
) -> dict[str, dict[str, list[Row]]]:
    """Makes the rows of both tasks: task -> split -> rows. A document has a sentence a line.

    The dev set does not depend on the size of the training set. A share of the documents is used.

    Raises:
      ValueError: a number is no multiple of 4, or there are too few documents.
    """
    drawn, num_rows = probe_rows.draw(documents, seed, share), {"dev": num_dev, "train": num_train}
    return {name: probe_rows.make_rows(name, drawn, num_rows, seed) for name in TASKS}


def write(
    folder: pathlib.Path,
    made: Mapping[str, Mapping[str, Sequence[Row]]],
    about: Mapping[str, object],
) -> None:
    """Writes the folder of both tasks from `make`, all of it or nothing; `about` is probes.json.

    A table has a line of column names, then tab-separated fields, as in GLUE.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part")
    try:
        for name, splits in made.items():
            task = TASKS[name]
            (part / task.folder).mkdir(parents=True)
            for split, rows in splits.items():
                lines = ["\t".join(("index", *task.columns.names))]
                for index, row in enumerate(rows):
                    lines.append("\t".join((str(index), *row.texts, task.labels[row.label])))
                content = ("\n".join(lines) + "\n").encode()  # bytes: a line feed everywhere
                (part / task.folder / f"{split}.tsv").write_bytes(content)
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        (part / ABOUT).write_text(text, encoding="utf-8")
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.data.probes", __doc__)
    made.add_argument("--corpus", required=True, help="as in a training: builtin, wikitext:DIR")
    made.add_argument("--to", required=True, type=pathlib.Path, help="folder to make")
    for name, kind, default, text in (
        ("num_train", _number, 2000, "rows of each training set, a multiple of 4"),
        ("num_dev", _number, 500, "rows of each dev set, a multiple of 4"),
        ("seed", _number, 0, "of all draws"),
        ("cache_dir", str, "~/.cache/scalelab", "prepared data"),
        ("valid_rate", float, 0.005, "share of the validation documents, as in the training"),
        ("errors", str, "strict", "invalid UTF-8: strict stops, replace inserts a character"),
    ):
        made.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text}; default: %(default)s"
        )
    return made


def run(given: argparse.Namespace) -> None:
    """Makes the probes; raises ValueError if corpus, folder or numbers do not allow it."""
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
    if given.to.exists() and not (given.to.is_dir() and not any(given.to.iterdir())):
        try:
            found = json_files.read_object(given.to / ABOUT) or {}
            same = found | {"corpus": given.corpus} == about  # "sentences" has the corpus's hash
        except ValueError:
            same = False
        if not same:
            raise ValueError(f"--to={given.to} holds other files or probes: choose another folder")
        print(f"{given.to} holds these probes already")
        return
    path = prepare.prepare_sentences(corpus, key, given.cache_dir, 2, True) / "train.txt"
    size = path.stat().st_size
    with show_bar("documents", size, show=True) as tick:
        documents = prepare.read_sentences(path, tick)
        share = MOST_BYTES / max(size, MOST_BYTES)
        made = make(documents, given.num_train, given.num_dev, given.seed, share)
    write(given.to, made, about)
    for name, splits in made.items():
        sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in splits.items())
        print(f"wrote {given.to / TASKS[name].folder}: {sizes} rows")


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
