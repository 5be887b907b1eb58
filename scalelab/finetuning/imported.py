"""A classifier that was imported: it can be scored as it is, and a fine-tuning can begin with it.

Its run folder says no more than the checkpoint did. It reads texts in the frame of its own
tokenizer, each pair once, which is what its head was trained on.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from scalelab import systems
from scalelab.config import files
from scalelab.config.pretraining import resolve
from scalelab.data.tokenizers import Tokenizer
from scalelab.finetuning import classifier_files
from scalelab.runs import pretrained, run_folder
from scalelab.runs.pretrained import Pretrained
from scalelab.tasks.task import Task, load_task, task_names

TASK = "imported"  # stands in config.json where a fine-tuning has the name of its task
NUMBERED = re.compile(r"(label_)?\d+")


@dataclasses.dataclass(frozen=True)
class ImportedClassifier:
    """The head of a checkpoint of others, and what its outputs mean.

    Attributes:
      path: its run folder.
      labels: names of its classes, in the order of its outputs.
      regression: whether its one output is a score.
      kind: of its head, as in config.head.kind.
      head: its head's parameters.
    """

    path: pathlib.Path
    labels: tuple[str, ...]
    regression: bool
    kind: str
    head: Any

    def order(self, task: Task) -> tuple[list[int], str]:
        """Which output is which class of a task.

        Returns:
          For each class of the task the index of the output that scores it, and in words how they
          were matched.

        Raises:
          ValueError: they cannot be matched.
        """
        if self.regression or task.regression:
            if not (self.regression and task.regression):
                kinds = [
                    "a score" if fitted else "classes"
                    for fitted in (task.regression, self.regression)
                ]
                raise ValueError(f"{task.title} asks for {kinds[0]}, {self.path} gives {kinds[1]}")
            return [0], "its score is taken as it is"
        wanted, ours = task.class_names, list(map(_plain, self.labels))
        both = f"{task.title} has {_some(wanted)}; {self.path} has {_some(self.labels)}"
        if len(wanted) != len(ours):
            raise ValueError(f"their classes do not fit, {len(wanted)} and {len(ours)}: {both}")
        spellings = [list(map(_plain, names)) for names in (task.labels or (), wanted)]
        for names in spellings:
            if sorted(names) == sorted(ours) and len(set(ours)) == len(ours):
                return [ours.index(name) for name in names], "its classes are matched by name"
        counted = [f"label_{i}" for i in range(len(ours))], [str(i) for i in range(len(ours))]
        has_words = not all(name.isdecimal() for name in spellings[-1])
        if ours not in counted and any(set(names) & set(ours) for names in spellings):
            raise ValueError(f"only some of their classes have the same names: {both}")
        if ours not in counted and (has_words or any(map(NUMBERED.fullmatch, ours))):
            raise ValueError(
                f"their classes have other names: {both}; where they mean the same, write the"
                f" task's names, in the order of these, as labels in {self.path}/config.json"
            )
        pairs = _some([f"{a} is {b}" for a, b in zip(wanted, self.labels, strict=True)])
        return list(range(len(wanted))), f"its classes have other names, matched by number: {pairs}"

    def head_for(self, task: Task) -> tuple[Any, str]:
        """Its head, outputs in the order of a task's classes, and how they were matched.

        Raises:
          ValueError: they cannot be matched.
        """
        order, said = self.order(task)
        out = {name: x[..., jnp.array(order)] for name, x in self.head["out"].items()}
        return self.head | {"out": out}, said


def class_names(values: Mapping[str, Any]) -> list[str] | None:
    """What the classes of a fine-tuning are called, whose config.json spells them as files do."""
    labels = values["labels"]
    if values["task"] in task_names():
        task = load_task(values["task"])
        if labels is not None and tuple(labels) == task.labels:
            return list(task.class_names)
    return labels


def _plain(name: str) -> str:
    """A name without what people write in one way or another."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def _some(names: Sequence[str]) -> str:
    """The first names, in words."""
    return ", ".join(name[:40] for name in names[:8]) + f", ... ({len(names)})" * (len(names) > 8)


def pretrain_values(system: str, corpus: str) -> dict[str, Any]:
    """What configs/pretrain.py gives a system, as nested values."""
    pretrain = files.load(files.FOLDER / "pretrain.py")
    return pretrain.get_config(f"system={system},corpus={corpus}").to_dict()


def is_classifier(path: pathlib.Path) -> bool:
    """Whether a folder holds a classifier that was imported."""
    values = run_folder.read_json(path / "config.json") if path.is_dir() else None
    return isinstance(values, Mapping) and values.get("task") == TASK


def load(path: pathlib.Path) -> tuple[Pretrained, ImportedClassifier]:
    """Opens an imported classifier: its net, as a pre-training would have left it, and its head.

    Raises:
      ValueError: something that is needed is missing from the folder.
    """
    values = run_folder.read_json(path / "config.json") or {}
    classifier_files.check_config(path, values)
    for name in ("tokenizer.json", "special_tokens_map.json"):
        if not (path / "tokenizer" / name).is_file():
            raise ValueError(f"the import in {path} has no tokenizer: {name} is missing in it")
    params = pretrained.load_trained(path)
    system, tokenizer = systems.load(values["system"]), Tokenizer.load(path / "tokenizer")
    flat = classifier_files.flat(params)
    rows = len(flat.get("embed/tokens/table", ()))  # of ids that no piece has too
    classifier_files.check_shapes(path, values, flat, max(rows, tokenizer.vocab_size))
    made = pretrain_values(values["system"], TASK)
    made["net"] |= values["net"]
    made["tokenizer"]["vocab_size"] = len(params["body"]["embed"]["tokens"]["table"])
    for phase in ("short", "long"):
        made[phase]["max_len"] = min(made[phase]["max_len"], made["net"]["max_len"])
    config = resolve(made)
    opened = Pretrained(path, config, system, tokenizer, params["body"], 0, finished=True)
    labels, kind = tuple(values["labels"] or ()), values["head"]["kind"]
    return opened, ImportedClassifier(path, labels, values["regression"], kind, params["head"])
