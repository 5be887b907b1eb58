"""Imported classifiers: their folders, the order of their classes, and checks of both.

An imported classifier can be scored as it is or fine-tuned. It reads texts in the frame of its own
tokenizer, each pair once, as its head was trained.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab import objectives, systems
from scalelab.config.finetuning import override
from scalelab.config.pretraining import Config, resolve
from scalelab.data.tokenizers import Tokenizer
from scalelab.nets.classifier import Classifier
from scalelab.nn.heads import OneLayerHead, TwoLayerHead
from scalelab.runs import pretrained, run_folder
from scalelab.runs.pretrained import Pretrained
from scalelab.tasks.task import Task, load_task, task_names

TASK = "imported"  # the task in the config.json of an imported classifier
SIZES = ("num_heads", "width", "num_layers", "ffn_width", "max_len", "dropout_rate")
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
        """Matches its outputs to the classes of a task.

        Returns:
          For each class of the task the index of its output, and how they were matched, in words.

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
        both = f"{task.title} has {_list_names(wanted)}; {self.path} has {_list_names(self.labels)}"
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
        pairs = _list_names([f"{a} is {b}" for a, b in zip(wanted, self.labels, strict=True)])
        return list(range(len(wanted))), f"its classes have other names, matched by number: {pairs}"

    def head_for(self, task: Task) -> tuple[Any, str]:
        """Returns its head, outputs in the order of a task's classes, and how they were matched.

        Raises:
          ValueError: they cannot be matched.
        """
        order, matching = self.order(task)
        out = {name: x[..., jnp.array(order)] for name, x in self.head["out"].items()}
        return self.head | {"out": out}, matching


def class_names(values: Mapping[str, Any]) -> list[str] | None:
    """Returns the names of the classes of a fine-tuning, given its config.json."""
    labels = values["labels"]
    if values["task"] in task_names():
        task = load_task(values["task"])
        if labels is not None and tuple(labels) == task.labels:
            return list(task.class_names)
    return labels


def _plain(name: str) -> str:
    """Returns a class name in lower case, with underscores for spaces and hyphens."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def _list_names(names: Sequence[str]) -> str:
    """Lists the first eight names, for a message."""
    return ", ".join(name[:40] for name in names[:8]) + f", ... ({len(names)})" * (len(names) > 8)


def pretrain_values(system: str, corpus: str) -> dict[str, Any]:
    """Returns the control's values with the departures of a system, nested."""
    fields = {d.field: d.value for d in systems.load(system).DEPARTURES}
    own = {"system": system, "data.corpus": corpus}
    return override(dataclasses.asdict(Config()), fields | own)


def is_classifier(path: pathlib.Path) -> bool:
    """Returns True if the folder holds an imported classifier."""
    values = run_folder.read_json(path / "config.json") if path.is_dir() else None
    return isinstance(values, Mapping) and values.get("task") == TASK


def load(path: pathlib.Path) -> tuple[Pretrained, ImportedClassifier]:
    """Opens an imported classifier: its net in the form of a pre-training run, and its head.

    Raises:
      ValueError: a file is missing from the folder, or does not fit the others.
    """
    values = run_folder.read_json(path / "config.json") or {}
    check_config(path, values)
    for name in ("tokenizer.json", "special_tokens_map.json"):
        if not (path / "tokenizer" / name).is_file():
            raise ValueError(f"the import in {path} has no tokenizer: {name} is missing in it")
    params = pretrained.load_trained(path)
    system, tokenizer = systems.load(values["system"]), Tokenizer.load(path / "tokenizer")
    named = flat(params)
    rows = len(named.get("embed/tokens/table", ()))  # ids without a piece have rows too
    check_shapes(path, values, named, max(rows, tokenizer.vocab_size))
    made = pretrain_values(values["system"], TASK)
    made["net"] |= values["net"]
    made["tokenizer"]["vocab_size"] = len(params["body"]["embed"]["tokens"]["table"])
    for phase in ("short", "long"):
        made[phase]["max_len"] = min(made[phase]["max_len"], made["net"]["max_len"])
    config = resolve(made)
    opened = Pretrained(path, config, system, tokenizer, params["body"], 0, finished=True)
    labels, kind = tuple(values["labels"] or ()), values["head"]["kind"]
    return opened, ImportedClassifier(path, labels, values["regression"], kind, params["head"])


def flat(params: Any) -> dict[str, Any]:
    """Returns parameters {"body", "head"} by path, those of the net without "body/"."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in leaves}
    return {name.removeprefix("body/"): x for name, x in named.items()}


def shapes(
    system: str, net: Mapping[str, Any], kind: str, num_classes: int, vocab_size: int
) -> dict[str, Any]:
    """Returns the shapes of a classifier's parameters by path, as `flat` names them.

    Args:
      system: its family.
      net: its sizes, by the names of SIZES.
      kind: of the head, "double" or "single".
      num_classes: C.
      vocab_size: V.
    """
    module: Any = systems.load(system)
    body = module.build(
        **{name: net[name] for name in SIZES} | {"ffn_width": net["ffn_width"] or 4 * net["width"]},
        vocab_size=vocab_size,
    )
    zeros = nn.initializers.zeros_init()
    if kind == "double":
        head = TwoLayerHead(num_classes, net["width"], 0.0, zeros)
    else:
        head = OneLayerHead(num_classes, 0.0, zeros)
    whole = Classifier(body, head, module.ADAPTATION.reads)
    batch = objectives.example_batch(1, has_pairs=False)
    made = jax.eval_shape(
        lambda: nn.unbox(whole.init(jax.random.key(0), batch, train=False)["params"])
    )
    return flat(made)


def check_config(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Refuses a config.json that lacks the fields of a fine-tuning or an import.

    Raises:
      ValueError: names the fields that are missing or wrong.
    """
    net, head = values.get("net"), values.get("head")
    net, head = (x if isinstance(x, Mapping) else {} for x in (net, head))
    found = {name: values.get(name) for name in ("system", "labels", "regression")}
    found |= {f"net.{name}": net.get(name) for name in SIZES} | {"head.kind": head.get("kind")}
    labels = found["labels"]
    rate = net.get("dropout_rate")
    fits = {name: type(net.get(name)) is int and net[name] > 0 for name in SIZES}
    fits |= {
        "ffn_width": net.get("ffn_width") is None or fits["ffn_width"],
        "dropout_rate": type(rate) in (int, float) and 0 <= rate < 1,
    }
    fits = {f"net.{name}": good for name, good in fits.items()} | {
        "system": isinstance(found["system"], str),
        "labels": (labels is None and found["regression"] is True)
        or (isinstance(labels, list) and labels and all(type(x) is str for x in labels)),
        "regression": isinstance(found["regression"], bool),
        "head.kind": found["head.kind"] in ("single", "double"),
    }
    wrong = [f"{name} = {str(found[name])[:60]}" for name, good in fits.items() if not good]
    if wrong:
        raise ValueError(
            f"{path}/config.json does not describe a fine-tuning or an import:"
            f" {', '.join(wrong)}; train or import again in a new --workdir"
        )


def check_shapes(
    path: pathlib.Path, values: Mapping[str, Any], given: Mapping[str, Any], vocab_size: int
) -> int:
    """Refuses parameters that contradict config.json and the tokenizer.

    Args:
      path: of the run, for the message.
      values: its config.json, checked.
      given: its parameters, as `flat` names them.
      vocab_size: pieces of its tokenizer.

    Returns:
      The number of its head's outputs.

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
