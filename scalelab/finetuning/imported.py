"""Imported classifiers: their folders, the order of their classes, and checks of both.

An imported classifier can be scored as it is or fine-tuned. It reads texts in the frame of its own
tokenizer, each pair once, as its head was trained.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab import objectives, systems
from scalelab.config.finetuning import override
from scalelab.config.pretraining import Config, resolve
from scalelab.data.tokenizers import Tokenizer
from scalelab.finetuning.step import make_head
from scalelab.nets.classifier import Classifier
from scalelab.runs import pretrained, run_folder
from scalelab.runs.pretrained import Pretrained
from scalelab.tasks.task import Task, load_task, task_names

TASK = "imported"  # the task in the config.json of an imported classifier
NUMBERED = re.compile(r"(label_)?\d+")


@dataclasses.dataclass(frozen=True)
class ImportedClassifier:
    """The head of a checkpoint of others, and what its outputs mean."""

    path: pathlib.Path  # its run folder
    labels: tuple[str, ...]  # names of its classes, in the order of its outputs
    regression: bool  # whether its one output is a score
    kind: str  # of its head, as in config.head.kind
    head: ArrayPytree  # its parameters

    def order(self, task: Task) -> tuple[list[int], str]:
        """Matches its outputs to the classes of a task.

        Returns:
          For each class of the task the index of its output, and how they were matched, in words.

        Raises:
          ValueError: they cannot be matched.
        """
        if self.regression and task.regression:
            return [0], "its score is taken as it is"
        wanted, ours = task.class_names, list(map(_plain, self.labels))
        if len(wanted) == len(ours) == len(set(ours)):
            for spelt in (task.labels or (), wanted):
                names = list(map(_plain, spelt))
                if sorted(names) == sorted(ours):
                    return [ours.index(name) for name in names], "its classes are matched by name"
            counted = [f"label_{i}" for i in range(len(ours))], [str(i) for i in range(len(ours))]
            nameless = all(map(str.isdecimal, wanted)) and not any(map(NUMBERED.fullmatch, ours))
            if ours in counted or nameless:
                pairs = _list([f"{a} is {b}" for a, b in zip(wanted, self.labels, strict=True)])
                return list(range(len(ours))), (
                    f"its classes have other names, matched by number: {pairs}"
                )
        raise ValueError(
            f"{task.title} asks for {_list(wanted) or 'a score'}; {self.path} gives"
            f" {'a score' if self.regression else _list(self.labels)}; where they mean the same,"
            f" write the task's names, in the order of these, as labels in {self.path}/config.json"
        )

    def head_for(self, task: Task) -> tuple[ArrayPytree, str]:
        """Returns its head with outputs in the order of a task's classes; see `order`."""
        order, matching = self.order(task)
        out = {name: x[..., jnp.array(order)] for name, x in self.head["out"].items()}
        return self.head | {"out": out}, matching


def class_names(values: Mapping[str, Any]) -> list[str] | None:
    """Returns the names of the classes of a fine-tuning, given its config.json."""
    labels = values["labels"]
    if labels is not None and values["task"] in task_names():
        task = load_task(values["task"])
        return list(task.class_names) if tuple(labels) == task.labels else labels
    return labels


def _plain(name: str) -> str:
    """Returns a class name in lower case, with underscores for spaces and hyphens."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def _list(names: Sequence[str]) -> str:
    """Lists the first eight names, for a message."""
    return ", ".join(name[:40] for name in names[:8]) + f", ... ({len(names)})" * (len(names) > 8)


def pretrain_values(system: str, corpus: str) -> dict[str, Any]:
    """Returns the control's values with the departures of a system, nested."""
    fields = {d.field: d.value for d in systems.load(system).DEPARTURES}
    own = {"system": system, "data.corpus": corpus}
    return override(dataclasses.asdict(Config()), fields | own)


def _config_of(system: str, net: Mapping[str, Any]) -> Config:
    """Returns the config of a pre-training that could have made a net."""
    made = pretrain_values(system, TASK)
    made["net"] |= net
    for phase in ("short", "long"):
        made[phase]["max_len"] = min(made[phase]["max_len"], made["net"]["max_len"])
    return resolve(made)


def is_classifier(path: pathlib.Path) -> bool:
    """Returns True if the folder holds an imported classifier."""
    return (run_folder.read_json(path / "config.json") or {}).get("task") == TASK


def load(path: pathlib.Path) -> tuple[Pretrained, ImportedClassifier]:
    """Opens an imported classifier: its net in the form of a pre-training run, and its head.

    Raises:
      ValueError: a file is missing from the folder, or does not fit the others.
    """
    values = run_folder.read_json(path / "config.json") or {}
    config = check_config(path, values)
    for name in ("tokenizer.json", "special_tokens_map.json"):
        if not (path / "tokenizer" / name).is_file():
            raise ValueError(f"the import in {path} has no tokenizer: {name} is missing in it")
    params = pretrained.load_trained(path)
    tokenizer = Tokenizer.load(path / "tokenizer")
    named = flat(params)
    rows = len(named.get("embed/tokens/table", ()))  # ids without a piece have rows too
    check_shapes(path, values, named, max(rows, tokenizer.vocab_size))
    config = dataclasses.replace(
        config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=rows)
    )
    system = systems.load(config.system)
    opened = Pretrained(path, config, system, tokenizer, params["body"], 0, finished=True)
    labels, kind = tuple(values["labels"] or ()), values["head"]["kind"]
    return opened, ImportedClassifier(path, labels, values["regression"], kind, params["head"])


def flat(params: ArrayPytree) -> dict[str, jax.Array]:
    """Returns parameters {"body", "head"} by path, those of the net without "body/"."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in leaves}
    return {name.removeprefix("body/"): x for name, x in named.items()}


def shapes(
    system: str, net: Mapping[str, Any], kind: str, num_classes: int, vocab_size: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a classifier's parameters by path, as `flat` names them.

    `net` has its sizes, fields of config.net; `kind` of its head is "double" or "single".
    """
    sizes, module = _config_of(system, net).net, systems.load(system)
    body = systems.make_net(module, sizes, vocab_size=vocab_size)
    head = make_head(kind, num_classes, sizes.width, 0.0)
    whole = Classifier(body, head, module.ADAPTATION.reads)
    batch, key = objectives.example_batch(1, ()), jax.random.key(0)
    init = functools.partial(whole.init, key, batch, objectives.Pass(key), train=False)
    return flat(nn.unbox(jax.eval_shape(init)["params"]))


def check_config(path: pathlib.Path, values: Mapping[str, Any]) -> Config:
    """Returns the config of a pre-training that could have made the net of a classifier.

    Args:
      path: of its run, for the message.
      values: the config.json of a fine-tuning or an import.

    Raises:
      ValueError: a field is missing or wrong.
    """
    labels, head = values.get("labels"), values.get("head")
    classes = isinstance(labels, list) and labels and all(isinstance(x, str) for x in labels)
    fits = {
        "system": isinstance(values.get("system"), str),
        "net": isinstance(values.get("net"), dict),
        "head.kind": isinstance(head, dict) and head.get("kind") in ("single", "double"),
        "labels": classes or (labels is None and values.get("regression") is True),
        "regression": isinstance(values.get("regression"), bool),
    }
    try:
        if not all(fits.values()):
            raise ValueError(", ".join(name for name, good in fits.items() if not good))
        return _config_of(values["system"], values["net"])
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path}/config.json does not describe a fine-tuning or an import: {error}; train or"
            " import again in a new --workdir"
        ) from error


def check_shapes(
    path: pathlib.Path, values: Mapping[str, Any], given: Mapping[str, jax.Array], vocab_size: int
) -> int:
    """Refuses parameters by path that contradict config.json and tokenizer; returns the outputs.

    Raises:
      ValueError: with the shapes of each.
    """
    count = 1 if values["regression"] else len(values["labels"])
    made = shapes(values["system"], values["net"], values["head"]["kind"], count, vocab_size)
    expected = {name: x.shape for name, x in made.items()}
    there = {name: np.shape(x) for name, x in given.items()}
    wrong = [
        f"{name}: expected {expected.get(name)}, found {there.get(name)}"
        for name in sorted(expected.keys() | there.keys())
        if there.get(name) != expected.get(name)
    ]
    if wrong:
        raise ValueError(
            f"the checkpoint in {path} contradicts its config.json or tokenizer:"
            f" {'; '.join(wrong[:8])}"
        )
    return count
