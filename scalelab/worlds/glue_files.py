"""The tasks' files in GLUE's official layout: folders, column names, no labels in test files.

Columns of the originals without a meaning here hold a dash; labels of test sets go to a file of
their own. MNLI's diagnostic set AX, which has no labels, is not written.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalelab.worlds import tasks
from scalelab.worlds.discourse import World
from scalelab.worlds.tasks import Example, Task

TEST_SHARE = 4  # training examples for each example of a dev or test set
PARSES = ["sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse"]
MNLI = ["index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2"]
STSB = ["index", "genre", "filename", "year", "old_index", "source1", "source2"]
NUMBERED = {"index", "id", "promptID", "pairID", "qid1", "qid2", "#1 ID", "#2 ID", "old_index"}
LABELS = {"label", "label1", "score", "Quality", "is_duplicate", "gold_label"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The files of a task.

    Attributes:
      folder: its name.
      texts: the text columns.
      labelled: all columns of training and dev files.
      test: all columns of test files.
      named: whether training and dev files begin with the columns' names.
      dev: files of the dev splits, without `.tsv`.
      tests: likewise of the test splits.
    """

    folder: str
    texts: tuple[str, ...]
    labelled: list[str]
    test: list[str]
    named: bool = True
    dev: tuple[str, ...] = ("dev",)
    tests: tuple[str, ...] = ("test",)


PAIR = ("sentence1", "sentence2")
PAIR_COLUMNS = ["index", *PAIR]
MRPC_TEXTS = ("#1 String", "#2 String")
QQP_TEXTS = ("question1", "question2")
QNLI_COLUMNS = ["index", "question", "sentence"]
LAYOUTS = {
    "cola": Layout(
        "CoLA",
        ("sentence",),
        ["source", "label", "mark", "sentence"],
        ["index", "sentence"],
        named=False,
    ),
    "sst2": Layout("SST-2", ("sentence",), ["sentence", "label"], ["index", "sentence"]),
    "mrpc": Layout(
        "MRPC",
        MRPC_TEXTS,
        ["Quality", "#1 ID", "#2 ID", *MRPC_TEXTS],
        ["index", "#1 ID", "#2 ID", *MRPC_TEXTS],
    ),
    "stsb": Layout("STS-B", PAIR, [*STSB, *PAIR, "score"], [*STSB, *PAIR]),
    "qqp": Layout(
        "QQP",
        QQP_TEXTS,
        ["id", "qid1", "qid2", *QQP_TEXTS, "is_duplicate"],
        ["id", *QQP_TEXTS],
    ),
    "mnli": Layout(
        "MNLI",
        PAIR,
        [*MNLI, "label1", "gold_label"],
        MNLI,
        dev=("dev_matched", "dev_mismatched"),
        tests=("test_matched", "test_mismatched"),
    ),
    "qnli": Layout("QNLI", ("question", "sentence"), [*QNLI_COLUMNS, "label"], QNLI_COLUMNS),
    "rte": Layout("RTE", PAIR, [*PAIR_COLUMNS, "label"], PAIR_COLUMNS),
    "wnli": Layout("WNLI", PAIR, [*PAIR_COLUMNS, "label"], PAIR_COLUMNS),
}


def write(world: World, seed: int, num_examples: int, folder: Path) -> dict[str, dict[str, int]]:
    """Writes the nine tasks.

    Args:
      world: the distribution of documents.
      seed: of the examples.
      num_examples: training examples of each task; a dev or test set has a quarter as many.
      folder: for the tasks' folders and `test_labels.jsonl`.

    Returns:
      Task -> file -> number of examples.

    Raises:
      ValueError: the lexicon is too small for so many.
    """
    tasks.check(world.grammar.lexicon)
    made = {task.name: _make(task, world, seed, num_examples) for task in tasks.TASKS}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "test_labels.jsonl").open("w", encoding="utf-8") as gold:
        for name, splits in made.items():
            layout = LAYOUTS[name]
            (folder / layout.folder).mkdir()
            for split, examples in splits.items():
                labelled = split not in layout.tests
                lines = _lines(layout, examples, labelled)
                path = folder / layout.folder / f"{split}.tsv"
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
                if not labelled:
                    gold.writelines(_gold(layout, split, examples))
    return {name: {s: len(e) for s, e in splits.items()} for name, splits in made.items()}


def _make(task: Task, world: World, seed: int, num_examples: int) -> dict[str, list[Example]]:
    layout = LAYOUTS[task.name]
    held = dict.fromkeys(layout.dev + layout.tests, max(1, num_examples // TEST_SHARE))
    return tasks.make(task, world, seed, {"train": num_examples} | held)


def _lines(layout: Layout, examples: Sequence[Example], labelled: bool) -> Iterator[str]:
    columns = layout.labelled if labelled else layout.test
    if layout.named or not labelled:
        yield "\t".join(columns)
    for number, example in enumerate(examples):
        cells = dict(zip(layout.texts, example.texts, strict=True))
        cells |= dict.fromkeys(NUMBERED, str(number)) | dict.fromkeys(LABELS, example.label)
        yield "\t".join(cells.get(column, "-") for column in columns)


def _gold(layout: Layout, split: str, examples: Sequence[Example]) -> Iterator[str]:
    for number, example in enumerate(examples):
        row = {"file": f"{layout.folder}/{split}.tsv", "index": number, "label": example.label}
        yield json.dumps(row) + "\n"
