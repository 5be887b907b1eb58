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
from flax import linen as nn
from flax.traverse_util import flatten_dict
from flax.typing import ArrayPytree

from scalelab import objectives, systems
from scalelab.config.finetuning import Head, override
from scalelab.config.pretraining import Config, Net, resolve
from scalelab.data.tokenizers import Tokenizer
from scalelab.finetuning import kinds, methods
from scalelab.finetuning.step import make_head
from scalelab.nets.classifier import Classifier
from scalelab.records import json_files
from scalelab.records.run_files import RunRecord
from scalelab.tasks.task import Task, load_task, task_names
from scalelab.training import pretrained
from scalelab.training.pretrained import Pretrained

TASK = "imported"  # the task in the config.json of an imported classifier
NUMBERED = re.compile(r"(label_)?\d+")


@dataclasses.dataclass(frozen=True)
class ImportedClassifier:
    """The head of a checkpoint of others, and what its outputs mean."""

    path: pathlib.Path  # its run folder
    labels: tuple[str, ...]  # names of its classes, in the order of its outputs
    regression: bool  # whether its one output is a score
    kind: str  # kind of its head, as in config.head.kind
    head: ArrayPytree  # its parameters
    task_kind: str = Task.kind

    def order(self, task: Task) -> tuple[list[int], str]:
        """Matches its outputs to the classes of a task.

        Returns:
          For each class of the task the index of its output, and how they were matched, in words.

        Raises:
          ValueError: they cannot be matched.
        """
        if self.task_kind != task.kind:
            raise ValueError(
                f"{task.title} needs a head of kind {task.kind}; {self.path} has {self.task_kind}"
            )
        if self.regression and task.regression:
            return [0], "its score is taken as it is"
        if not (self.labels or self.regression):
            return [*range(len(self.head["out"]["bias"]))], "its outputs are taken as they are"
        wanted, given = task.class_names, list(map(_plain, self.labels))
        if len(wanted) == len(given) == len(set(given)):
            for spelt in (task.labels or (), wanted):
                names = list(map(_plain, spelt))
                if sorted(names) == sorted(given):
                    return [given.index(name) for name in names], "its classes are matched by name"
            counted = [f"label_{i}" for i in range(len(given))], [str(i) for i in range(len(given))]
            nameless = all(map(str.isdecimal, wanted)) and not any(map(NUMBERED.fullmatch, given))
            if given in counted or nameless:
                pairs = _list([f"{a} is {b}" for a, b in zip(wanted, self.labels, strict=True)])
                return list(range(len(given))), (
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


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """The fields of a fine-tuning's or an import's config.json that describe its classifier."""

    task: str
    system: str
    model: Net
    head: Head
    labels: tuple[str, ...] | None  # None: a regression, or a kind of head without classes
    regression: bool
    kind: str = Task.kind  # kind of its head, as in Task.kind
    relation: str | None = None  # relation of a task's two texts
    frame: str | None = None  # "imported": that of an imported classifier's tokenizer
    feature_layers: int | None = None
    adapter_width: int | None = None
    new_encoder_layers: int | None = None
    system_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of its classes; None for a regression."""
        if self.labels is not None and self.task in task_names():
            task = load_task(self.task)
            return tuple(task.class_names) if self.labels == task.labels else self.labels
        return self.labels

    def __post_init__(self) -> None:
        """Raises ValueError if no classifier can be so."""
        if self.head.kind is None:
            raise ValueError("head.kind: expected the kind of the head, got none")
        needs_no_labels = self.kind in kinds.GENERATED or kinds.load(self.kind).NUM_OUTPUTS
        if not (self.regression or self.labels or needs_no_labels):
            raise ValueError("labels: expected the names of the classes, got none")
        self.pretraining()

    def pretraining(self) -> Config:
        """Returns the config of a pre-training that could have made its model."""
        own = {"model": dataclasses.asdict(self.model), "system_options": self.system_options}
        return resolve(pretrain_values(self.system, TASK, self.model.max_len) | own)


def _plain(name: str) -> str:
    """Returns a class name in lower case, with underscores for spaces and hyphens."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def _list(names: Sequence[str]) -> str:
    """Lists the first eight names, for a message."""
    return ", ".join(name[:40] for name in names[:8]) + f", ... ({len(names)})" * (len(names) > 8)


def pretrain_values(system: str, corpus: str, max_len: int) -> dict[str, Any]:
    """Returns the base config's values with the declared differences of a system, nested.

    Texts have at most `max_len` tokens.
    """
    own = {"system": system, "data.corpus": corpus}
    fields = {d.field: d.value for d in systems.load(system).DEPARTURES} | own
    made = override(dataclasses.asdict(Config()), fields)
    for phase in ("short", "long"):
        made[phase]["max_len"] = min(made[phase]["max_len"], max_len)
    return made


def load(run: RunRecord, params: ArrayPytree) -> tuple[Pretrained, ImportedClassifier | None]:
    """Opens the model of a fine-tuning or an import as that of a pre-training.

    Args:
      run: the record of the fine-tuning, or of the import.
      params: its parameters, "body" and "head".

    Returns:
      The model without the rows of added tokens; the classifier, if it was imported, else None.

    Raises:
      ValueError: a file is missing from the folder of an import, or does not fit the others.
    """
    path, classifier = run.folder, None
    given = json_files.fill(ClassifierConfig, run.config, path / "config.json")
    config, system, named = given.pretraining(), systems.load(given.system), flat(params)
    net = systems.make_net(system, given.model, config.system_options, vocab_size=1)
    num_rows = len(named.get(net.TOKEN_TABLE, ()))  # ids without a piece have rows too
    added = () if given.kind in kinds.GENERATED else system.ADAPTATION.added_tokens
    if is_imported := run.task == TASK or given.frame == "imported":
        for name in ("tokenizer.json", "special_tokens_map.json"):
            if not (path / "tokenizer" / name).is_file():
                raise ValueError(f"the import in {path} has no tokenizer: {name} is missing in it")
    read = Tokenizer.load(path / "tokenizer")
    if is_imported:
        check_shapes(path, given, named, max(num_rows, read.vocab_size))
        of_head = given.labels or (), given.regression, str(given.head.kind), params["head"]
        classifier, added = ImportedClassifier(path, *of_head, given.kind), ()
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=num_rows - len(added))
    seed = getattr(run.result, "pretrain_seed", None) or 0
    config = dataclasses.replace(config, tokenizer=tokenizer, seed=seed)
    opened = Pretrained(path, config, system, read, params["body"], 0, finished=True)
    return opened, classifier


def flat(params: ArrayPytree) -> dict[str, jax.Array]:
    """Returns parameters {"body", "head"} by path, those of the model without "body/"."""
    return {name.removeprefix("body/"): x for name, x in flatten_dict(params, sep="/").items()}


def check_shapes(
    path: pathlib.Path, config: ClassifierConfig, given: Mapping[str, jax.Array], vocab_size: int
) -> int:
    """Refuses parameters that contradict config.json and tokenizer; returns the head's outputs.

    Args:
      path: folder, for the message.
      config: the classifier's config.
      given: path of a parameter -> array.
      vocab_size: V, added tokens included.

    Raises:
      ValueError: names or shapes of parameters differ; the message lists them.
    """
    count = kinds.num_outputs(config.kind, None if config.regression else config.labels)
    module = systems.load(config.system)
    body = systems.make_net(module, config.model, config.system_options, vocab_size=vocab_size)
    if config.adapter_width:
        body = methods.add_adapters(body, config.adapter_width)
    adaptation = module.ADAPTATION
    head = make_head(config.head, count, config.model.width, adaptation)
    whole = Classifier(body, *head, source=adaptation.source, start=0)
    batch, key = objectives.example_batch(1, ()), jax.random.key(0)
    init = functools.partial(whole.init, key, batch, objectives.Pass(key).hidden, train=False)
    made = flat(nn.unbox(jax.eval_shape(init)["params"]))
    pretrained.compare_shapes(path, given, made)
    return count
