"""Applies a fine-tuned model to new text.

  python -m scalelab.predict --run=RUN FILE [--output=FILE.tsv] [--columns=TEXT[,TEXT2]]

RUN is the folder of one seed of a fine-tuning, or of an imported classifier. FILE is .tsv (without
quoting, as GLUE's), .csv or .jsonl, with the task's text columns named as in the task's own files;
--columns gives other names. The predictions have the columns of predictions.tsv without `gold`: the
texts under their names in FILE, the predicted label, its name where the label is a number, and the
probability of every class, or else the score of a regression.
"""

import argparse
import contextlib
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab.config import cli
from scalelab.helpers.files import whole
from scalelab.helpers.names import brief
from scalelab.resources import host
from scalelab.tasks import data_files

ROWS = 4096  # read, tokenized and predicted at a time
Names = tuple[str | int, ...]  # text columns, or their positions in a file without a header


def read_texts(
    path: pathlib.Path, choices: Sequence[Names]
) -> tuple[Names, Iterator[tuple[str, ...]]]:
    """Returns which of `choices` a file has, and an iterator over the texts of each row.

    Args:
      path: a file that ends in .tsv, .csv or .jsonl.
      choices: the names that the text columns may have; positions stand last.

    Raises:
      ValueError: the file has another ending or lacks a column; the iterator: a row has another
        form.
    """
    kind = path.suffix
    if kind not in (".tsv", ".csv", ".jsonl"):
        raise ValueError(f"{path}: expected a file that ends in .tsv, .csv or .jsonl")
    rows: Iterator[tuple[int, Any]] = (
        data_files.read_objects(path) if kind == ".jsonl"
        else data_files.read_fields(path, "," if kind == ".csv" else "\t", quoted=kind == ".csv")
    )  # fmt: skip
    if (begin := next(rows, None)) is None:
        raise ValueError(f"{path}: there are no rows")
    first = begin[1]
    names = next((c for c in choices if all(name in first for name in c)), None)
    if names is None and kind == ".tsv" and isinstance(choices[-1][0], int):
        names = choices[-1]
    if names is None:
        expected = " or ".join(",".join(map(str, c)) for c in choices)
        raise ValueError(f"{path}: expected the columns {expected}, found {brief([*first])}")
    places = names
    if kind == ".jsonl" or isinstance(names[0], int):
        rows = itertools.chain([begin], rows)
    else:
        places = tuple(data_files.find_columns(path, first, [*map(str, names)]).values())
    return names, _texts_of_rows(path, rows, places, len(first) if kind != ".jsonl" else None)


def _texts_of_rows(
    path: pathlib.Path, rows: Iterator[tuple[int, Any]], places: Names, num_fields: int | None
) -> Iterator[tuple[str, ...]]:
    for number, row in rows:
        if num_fields is not None and len(row) != num_fields:
            raise data_files.field_count_error(path, number, row, num_fields)
        try:
            texts = tuple(row[place] for place in places)
        except (KeyError, IndexError):
            texts = ()
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path}, line {number}: expected texts, found {brief(row)}")
        yield texts


def predict(
    run: pathlib.Path, path: pathlib.Path, columns: Sequence[str] = (), rows: int = ROWS
) -> Iterator[tuple[list[str], int]]:
    """Yields the lines of predictions of some rows of a file, and how many texts were cut.

    Args:
      run: run folder of the fine-tuning.
      path: the file.
      columns: names of its text columns; (): those of the task's files.
      rows: number of rows to read at a time.

    Raises:
      ValueError: the run is no fine-tuning, or the file does not fit its task.
    """
    from scalelab.finetuning import reopen
    from scalelab.records import predictions
    from scalelab.tasks.records import Records

    opened = reopen.load(run, columns)
    task, machine = opened.task, opened.config.machine
    if columns and len(columns) != len(task.columns.texts):
        raise ValueError(f"--columns: {task.title} has {len(task.columns.texts)} text columns")
    host.configure_jax(machine.compile_cache_dir, opened.start.opened.config.model.dtype)
    if columns:
        choices = [tuple(columns)]
    else:  # the columns of the task's files; positions stand last
        own = [task.columns.texts, task.unlabeled_columns.texts, task.tfds_texts or ()]
        choices = sorted(filter(None, dict.fromkeys(own)), key=lambda c: isinstance(c[0], int))
    found, texts = read_texts(path, choices)
    names = [*map(str, found)] if isinstance(found[0], str) else None
    prepared, start = None, 0
    with tempfile.TemporaryDirectory() as cache_dir:  # new texts are not kept
        while part := list(itertools.islice(texts, rows)):
            by_column = tuple(map(list, zip(*part, strict=True)))
            empty = (i for i, row in enumerate(part, start + 1) if not "".join(row).strip())
            if task.kind == "texts" and (number := next(empty, None)):
                raise ValueError(f"{path}: text {number} is empty: expected one to read")
            records = Records(by_column, None, str(path), "")
            prepared = prepared or opened.prepare(records, cache_dir)
            encoded = prepared.encode(records) if start else prepared.train
            outputs = prepared.predict_with(opened.params, encoded)
            answers, table, _ = prepared.kind.decode(
                task, records, encoded, outputs, prepared.reading
            )
            outputs = answers[:, None] if table is None else table
            made = predictions.lines(
                by_column, outputs, task.labels, None, task.classes, start, names
            )
            yield list(made)[start > 0 :], encoded.num_truncated
            start += len(part)


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.predict", __doc__, setup=host.keep_freed)
    made.add_argument("file", type=pathlib.Path, metavar="FILE", help="texts: .tsv, .csv or .jsonl")
    made.add_argument("--run", required=True, type=pathlib.Path, help="folder of a fine-tuned seed")
    made.add_argument("--output", type=pathlib.Path, help="where they go; default: the terminal")
    made.add_argument(
        "--columns", type=cli.comma_list, default=[], help="names of the text columns: one or two"
    )
    return made


def main(given: argparse.Namespace) -> None:
    """Writes the predictions."""
    count, num_cut = -1, 0  # -1: header
    place = whole(given.output) if given.output else contextlib.nullcontext()
    with place as part, contextlib.ExitStack() as files:
        out = files.enter_context(part.open("w", encoding="utf-8")) if part else sys.stdout
        for lines, cut in predict(given.run, given.file, given.columns):
            out.writelines(lines)
            count, num_cut = count + len(lines), num_cut + cut
    print(f"{count:,} predictions; {num_cut:,} texts were cut to fit", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main, parser())
