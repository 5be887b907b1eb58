"""The tasks' files in GLUE's layout: the folders, files and columns that `scalelab.eval` reads.

Labels of test sets go to a separate file. MNLI's diagnostic set AX, which has no labels, is not
written. All examples of a task, over all splits, have different key texts: the sentence of CoLA,
SST-2 and QNLI, the first text of the other tasks. Labels are equally frequent, in random order.
"""

import json
import zlib
from pathlib import Path

import numpy as np

from scalelab.tasks import task as task_lib
from scalelab.worlds.discourse import World
from scalelab.worlds.tasks import SIMILARITIES, TASKS, Draws

TEST_SHARE = 4  # training examples for each example of a dev or test set
MAX_TRIES = 200  # draws of an example before the lexicon counts as too small
LEAST = {"num_topics": 2, "num_nouns": 4, "num_verbs": 2, "num_adjectives": 2}
Example = tuple[tuple[str, ...], str]  # texts and label


def write(world: World, seed: int, num_examples: int, folder: Path) -> dict[str, dict[str, int]]:
    """Writes the nine tasks.

    Args:
      world: source of the sentences.
      seed: seed of all draws.
      num_examples: examples of a training set; a dev or test set has a quarter of them.
      folder: folder of the tasks.

    Returns:
      The number of examples by task and file.

    Raises:
      ValueError: the lexicon is too small for this number of examples.
    """
    for name, least in LEAST.items():
        if getattr(world.lexicon.sizes, name) < least:
            raise ValueError(
                f"{name}={getattr(world.lexicon.sizes, name)}: the tasks need {least} or more;"
                " without them (--tasks_examples=0) fewer are enough"
            )
    made = {name: make(name, world, seed, num_examples) for name in TASKS}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "test_labels.jsonl").open("w", encoding="utf-8") as labels:
        for name, splits in made.items():
            task = task_lib.load_task(name)
            (folder / task.folder).mkdir()
            for split, examples in splits.items():
                file, is_test = f"{task.folder}/{split}.tsv", split.startswith("test")
                columns = task.unlabeled_columns if is_test else task.columns
                names = list(range(columns.num_fields or 0)) or ["index", *columns.names]
                # Columns by position have no first line of names.
                lines = [] if columns.num_fields else ["\t".join(map(str, names))]
                for number, (texts, label) in enumerate(examples):
                    cells = {"index": str(number), columns.label: label}
                    cells |= dict(zip(columns.texts, texts, strict=True))
                    lines.append("\t".join(cells.get(name, "-") for name in names))
                    if is_test:
                        row = {"file": file, "index": number, "label": label}
                        labels.write(json.dumps(row) + "\n")
                (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: {s: len(e) for s, e in splits.items()} for name, splits in made.items()}


def make(name: str, world: World, seed: int, num_examples: int) -> dict[str, list[Example]]:
    """Makes the examples of a task by file name.

    MNLI's mismatched sets have the last quarter of the topics, its other sets the other topics.

    Args:
      name: name of the task.
      world: source of the sentences.
      seed: seed of all draws.
      num_examples: examples of the training set.

    Raises:
      ValueError: the lexicon is too small for this number of examples.
    """
    task, maker = task_lib.load_task(name), TASKS[name]
    labels = task.labels or SIMILARITIES
    paths = [Path(split.files[0]) for split in (*task.dev_splits, *task.test_splits)]
    held_out = [path.stem for path in paths if path.parent.name == task.folder]
    counts = {"train": num_examples} | dict.fromkeys(held_out, max(1, num_examples // TEST_SHARE))
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    num_topics = len(world.lexicon.topics)
    kept = num_topics - max(1, num_topics // 4) if name == "mnli" else num_topics
    used: set[str] = set()

    def draw(draws: Draws, label: str) -> Example:
        for _ in range(MAX_TRIES):
            texts = maker(draws, label)
            key = texts[name == "qnli"]
            if key not in used and len(set(texts)) == len(texts):
                used.add(key)
                return texts, label
        raise ValueError(
            f"the lexicon is too small for so many examples of {name}: ask for fewer, or for more"
            " nouns or topics"
        )

    made = {}
    for split, number in counts.items():
        topics = range(kept, num_topics) if split.endswith("mismatched") else range(kept)
        order = rng.permutation([labels[i % len(labels)] for i in range(number)])
        draws = Draws(world, tuple(topics), rng)
        made[split] = [draw(draws, label) for label in order.tolist()]
    return made
