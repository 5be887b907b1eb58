"""A classifier that was imported: it can be scored as it is, and a fine-tuning can begin with it.

Its run folder says no more than the checkpoint did. It reads texts in the frame of its own
tokenizer, each pair once, which is what its head was trained on.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from scalelab import config_files, pretrained, run_folder, systems
from scalelab.config import resolve
from scalelab.data.tokenizers import Tokenizer
from scalelab.eval.task import Task
from scalelab.pretrained import Pretrained

TASK = "imported"  # stands in config.json where a fine-tuning has the name of its task


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
        wanted, ours = task.labels or (), [label.casefold() for label in self.labels]
        names = [label.casefold() for label in wanted]
        both = f"{task.title} has {', '.join(wanted)}; {self.path} has {', '.join(self.labels)}"
        if len(wanted) != len(self.labels):
            raise ValueError(f"their classes do not fit, {len(wanted)} and {len(ours)}: {both}")
        if sorted(names) == sorted(ours) and len(set(ours)) == len(ours):
            return [ours.index(name) for name in names], "its classes are matched by name"
        if set(names) & set(ours):
            raise ValueError(f"only some of their classes have the same names: {both}")
        pairs = ", ".join(f"{a} is {b}" for a, b in zip(wanted, self.labels, strict=True))
        return list(range(len(wanted))), f"its classes have other names, matched by number: {pairs}"

    def head_for(self, task: Task) -> tuple[Any, str]:
        """Its head, outputs in the order of a task's classes, and how they were matched.

        Raises:
          ValueError: they cannot be matched.
        """
        order, said = self.order(task)
        out = {name: x[..., jnp.array(order)] for name, x in self.head["out"].items()}
        return self.head | {"out": out}, said


def pretrain_values(system: str, corpus: str) -> dict[str, Any]:
    """What configs/pretrain.py gives a system, as nested values."""
    pretrain = config_files.load(config_files.FOLDER / "pretrain.py")
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
    if not (path / "tokenizer" / "tokenizer.json").is_file():
        raise ValueError(f"the import in {path} has no tokenizer: {path}/tokenizer is missing")
    params = pretrained.load_trained(path)
    made = pretrain_values(values["system"], TASK)
    made["net"] |= values["net"]
    made["tokenizer"]["vocab_size"] = len(params["body"]["embed"]["tokens"]["table"])
    for phase in ("short", "long"):
        made[phase]["max_len"] = min(made[phase]["max_len"], made["net"]["max_len"])
    config = resolve(made)
    tokenizer = Tokenizer.load(path / "tokenizer")
    system = systems.load(config.system)
    opened = Pretrained(path, config, system, tokenizer, params["body"], 0, finished=True)
    labels, kind = tuple(values["labels"] or ()), values["head"]["kind"]
    return opened, ImportedClassifier(path, labels, values["regression"], kind, params["head"])
