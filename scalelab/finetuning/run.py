"""A task prepared for a net: its examples and classifier, and what each seed keeps."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab import objectives as objectives_lib
from scalelab import systems
from scalelab.config.finetuning import FinetuneConfig
from scalelab.data import tokenizers
from scalelab.finetuning import rows
from scalelab.finetuning.start import Start, check_fits
from scalelab.finetuning.step import Learner
from scalelab.formats.documents import Frame
from scalelab.nets.classifier import Classifier
from scalelab.nn.heads import OneLayerHead, TwoLayerHead
from scalelab.optim import adamw
from scalelab.resources import flops
from scalelab.runs.checkpoint import Checkpoints
from scalelab.tasks import examples
from scalelab.tasks.examples import TaskBatches, TaskExamples
from scalelab.tasks.task import Splits, Task, is_known

HEAD_INIT = nn.initializers.normal(stddev=0.02)  # as in BERT's, RoBERTa's and GPT's own code


@flax.struct.dataclass
class Trained:
    """What is kept of a finished fine-tuning.

    Attributes:
      params: {"body", "head"}.
      step: steps taken.
    """

    params: Any  # in the order of a dict's keys, as which they are read back
    step: jax.Array


class TaskRun:
    """A task prepared for a net: examples, classifier, and what every seed's run has in common.

    Args:
      task: the task.
      splits: its records.
      start: where to begin.
      config: how to adapt.
      workdir: holds the seeds' folders.
    """

    def __init__(
        self,
        task: Task,
        splits: Splits,
        start: Start,
        config: FinetuneConfig,
        workdir: pathlib.Path,
    ) -> None:
        self.task, self.splits, self.start = task, splits, start
        self.config, self.workdir = config, workdir
        opened = start.opened
        adaptation, classifier = opened.system.ADAPTATION, start.classifier
        added = () if classifier else adaptation.added_tokens
        both = adaptation.both_orders and task.relation == "similarity" and not classifier
        assert splits.train is not None
        check_fits(opened, config, task.title, len(splits.train))
        self.tokenizer = opened.tokenizer.with_added(added)
        num_rows = opened.config.tokenizer.vocab_size + len(added)
        self.learner = self._learner(2 if both else 1, num_rows)
        self.head, self.head_said = self._head()
        frame = (
            self.tokenizer.frame()
            if classifier
            else Frame(
                *(
                    tuple(self.tokenizer.token_id(text) for text in part)
                    for part in (adaptation.begin, adaptation.between, adaptation.end)
                )
            )
        )
        self.tokenizer_digest = tokenizers.digest(opened.tokenizer_dir)

        def encode(records: Any) -> TaskExamples | None:
            return records and examples.encode(
                records.texts,
                records.labels,
                self.tokenizer,
                frame,
                max_len=config.max_len,
                both_orders=both,
                cache_dir=config.machine.cache_dir,
                tokenizer_digest=self.tokenizer_digest,
            )

        train = encode(splits.train)
        assert train is not None
        self.train = train.first(config.max_train_examples)
        self.dev = {name: encode(records) for name, records in splits.dev.items()}
        self.test = {name: encode(records) for name, records in splits.test.items()}
        self.steps_per_epoch = -(-len(self.train) // config.batch_size)
        self.num_steps = max(1, round(config.epochs * self.steps_per_epoch))
        self.rows, self.narrow_learner = None, self.learner
        if not (config.lm_weight or config.feature_layers):  # else all rows are trained, or none
            read = [e for e in (self.train, *self.dev.values()) if e is not None]
            width = opened.config.net.width
            self.rows = rows.find(read, num_rows, width, self.num_steps)
        if self.rows is not None:
            self.narrow_learner = self._learner(self.learner.net.num_orders, self.rows.size)

    def _learner(self, num_orders: int, num_rows: int) -> Learner:
        """Builds the classifier, with so many rows of tokens, and what trains it."""
        config, opened = self.config, self.start.opened
        pretraining = opened.config
        sizes = dataclasses.replace(pretraining.net, dropout_rate=config.dropout_rate)
        body = systems.make_net(
            opened.system, sizes, vocab_size=num_rows, remat=pretraining.machine.remat
        )
        rate = config.head.dropout_rate
        if config.head.kind == "double":
            head = TwoLayerHead(self.task.num_outputs, sizes.width, rate, HEAD_INIT)
        else:
            head = OneLayerHead(self.task.num_outputs, rate, HEAD_INIT)
        objectives = ()
        if config.lm_weight:
            special = self.tokenizer.special_ids
            objectives = objectives_lib.make(
                ("clm",),
                vocab_size=pretraining.tokenizer.vocab_size,
                special_ids=special,
                mask_rate=pretraining.mask_rate,
            )
        o = config.optim
        return Learner(
            Classifier(body, head, opened.system.ADAPTATION.reads, num_orders),
            adamw.adamw(
                beta1=o.beta1,
                beta2=o.beta2,
                eps=o.eps,
                weight_decay=o.weight_decay,
                clip_norm=o.clip_norm,
            ),
            self.task.regression,
            objectives,
            config.lm_weight,
            config.feature_layers,
            o.layer_decay,
            pretrained_head=config.head.pretrained,
            keep_best=config.patience is not None,
        )

    def _head(self) -> tuple[Any, str]:
        """Parameters of the head to begin with, and how that came; None: new ones."""
        classifier = self.start.classifier
        if classifier is None or self.start.bodies is None:
            return None, ""
        try:
            head, said = classifier.head_for(self.task)
        except ValueError as error:
            return None, f"{self.task.title} gets a new head: {error}"
        if self.config.feature_layers or self.config.head.kind != classifier.kind:
            return None, (
                f"{self.task.title} gets a new head: that of {classifier.path} is"
                f" {classifier.kind!r} and reads the last layer, another than the config's"
            )
        return head, f"{self.task.title} has the head of {classifier.path}: {said}"

    def batches(self, seed: int) -> TaskBatches:
        """The training batches of a seed."""
        config = self.config
        order = seed if config.order_seed is None else config.order_seed
        return TaskBatches(
            self.train, config.batch_size, config.max_len, order, config.group_batches
        )

    def weights_seed(self, seed: int) -> int:
        """The seed of the new head, of new rows of the embedding, and of dropout."""
        return seed if self.config.weights_seed is None else self.config.weights_seed

    def folder(self, seed: int) -> pathlib.Path:
        """The run folder of a seed."""
        return self.workdir / f"seed{seed}"

    def describe(self, seed: int) -> dict[str, Any]:
        """The content of config.json: every field, and what else decides the result."""
        config, opened = dataclasses.asdict(self.config), self.start.opened
        machine = config.pop("machine")
        machine |= {"init": self.start.label}
        labels, named = self.task.labels, self.task.columns
        columns = None if is_known(self.task) else [*named.texts, named.label]
        frame = {"frame": "imported"} if self.start.classifier else {}
        return frame | {
            "task": self.task.name,
            "relation": self.task.relation,
            "columns": columns,
            "labels": None if labels is None else list(labels),
            "regression": self.task.regression,
            "seed": seed,
            "system": opened.config.system,
            "init": self.start.digest(seed),
            "tokenizer_digest": self.tokenizer_digest,
            "mnli_first": self.start.mnli_first,
            "net": dataclasses.asdict(opened.config.net) | {"dropout_rate": config["dropout_rate"]},
            "data": {k: v for k, v in self.splits.digests.items() if k not in self.splits.test},
            **config,
            "machine": machine,
        }

    def claim(self, seed: int) -> dict[str, Any] | None:
        """A seed's result if this very run has been completed in its folder, else None.

        Raises:
          ValueError: its folder holds another run.
        """
        folder, config = self.folder(seed), self.describe(seed)
        before = folder.read_json(folder / "config.json")
        if before is not None and "tokenizer_digest" not in before:
            del config["tokenizer_digest"]  # a folder of a version that did not record it
        return folder.claim(folder, config)

    def result(self, seed: int) -> dict[str, Any]:
        """The result.json of a finished seed."""
        return json.loads((self.folder(seed) / "result.json").read_text())

    def flops(self, params: Any, length: int) -> float:
        """Of a training step on a batch padded to `length`."""
        opened, net = self.start.opened, self.learner.net
        return flops.of_batch(
            params["body"],
            width=opened.config.net.width,
            num_layers=opened.config.net.num_layers,
            batch_size=self.config.batch_size * net.num_orders,
            length=length,
            predicted=length - 1 if self.config.lm_weight else 0,
            causal=opened.system.CAUSAL,
        ).train

    # --- What was learnt ----------------

    def predict(
        self, run_predict: Callable[..., Any], params: Any, fixed: Any, examples: TaskExamples,
        num_seeds: int,
    ) -> np.ndarray:  # fmt: skip
        """Scores of every example exactly once: float32 [K, n, C]."""
        found = np.zeros((num_seeds, len(examples), self.task.num_outputs), np.float32)
        pending = []
        size = self.config.machine.eval_batch_size
        for ids, batch in examples.evaluation_batches(examples, size, self.config.max_len):
            pending.append((ids, run_predict(params, fixed, batch)))
        for ids, made in pending:
            real = ids >= 0
            found[:, ids[real]] = np.asarray(made).reshape(num_seeds, len(ids), -1)[:, real]
        return found

    def save(self, seed: int, step: int, params: Any) -> None:
        """Keeps the parameters of a finished seed, and the tokenizer that goes with them."""
        folder = self.folder(seed)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        kept = Checkpoints(folder / "checkpoints", 1)
        kept.save(Trained(params, jnp.int32(step)), {})
        kept.close()
        self.tokenizer.save(self.start.opened.tokenizer_dir, folder / "tokenizer")
