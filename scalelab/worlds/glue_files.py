"""The tasks' files in GLUE's layout: the folders, files and columns that `scalelab.eval` reads.

Labels of test sets go to a file of their own. MNLI's diagnostic set AX, which has no labels, is not
written.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalelab.tasks import task as task_lib
from scalelab.tasks.files import Columns
from scalelab.worlds import tasks
from scalelab.worlds.discourse import World
from scalelab.worlds.tasks import Example, Task

TEST_SHARE = 4  # training examples for each example of a dev or test set


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
            files = task_lib.load_task(name)
            (folder / files.folder).mkdir()
            for split, examples in splits.items():
                file = f"{files.folder}/{split}.tsv"
                labelled = not split.startswith("test")
                lines = _lines(files.columns if labelled else files.unlabelled_columns, examples)
                (folder / file).write_text("".join(lines), encoding="utf-8")
                for number, example in enumerate([] if labelled else examples):
                    row = {"file": file, "index": number, "label": example.label}
                    gold.write(json.dumps(row) + "\n")
    return {name: {s: len(e) for s, e in splits.items()} for name, splits in made.items()}


def _make(task: Task, world: World, seed: int, num_examples: int) -> dict[str, list[Example]]:
    """Makes the examples of a task by file name."""
    files = task_lib.load_task(task.name)
    paths = [Path(split.files[0]) for split in (*files.dev_splits, *files.test_splits)]
    held = [path.stem for path in paths if path.parent.name == files.folder]
    counts = {"train": num_examples} | dict.fromkeys(held, max(1, num_examples // TEST_SHARE))
    return tasks.make(task, world, seed, counts)


def _lines(columns: Columns, examples: Sequence[Example]) -> Iterator[str]:
    """Yields the lines of a file; columns by position have no first line of names."""
    names = list(range(columns.num_fields)) if columns.num_fields else ["index", *columns.names]
    if not columns.num_fields:
        yield "\t".join(map(str, names)) + "\n"
    for number, example in enumerate(examples):
        cells = {"index": str(number), columns.label: example.label}
        cells |= dict(zip(columns.texts, example.texts, strict=True))
        yield "\t".join(cells.get(name, "-") for name in names) + "\n"
