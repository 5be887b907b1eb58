"""A task prepared for a model: examples, classifier, devices, and the run folder of each seed."""

import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab import sharding, systems
from scalelab.config.finetuning import FinetuneConfig
from scalelab.data.tokenizers import digest as tokenizer_digest
from scalelab.finetuning import kinds, methods, rows
from scalelab.finetuning.step import (
    DECOMPOSABLE,
    FinetuneStep,
    Params,
    compiled,
    make_head,
)
from scalelab.finetuning.warm_start import WarmStart, check_fits
from scalelab.formats import Frame
from scalelab.nets.classifier import Classifier
from scalelab.optim import adamw
from scalelab.records import json_files, run_files, run_folder
from scalelab.state import TrainState
from scalelab.tasks import metrics
from scalelab.tasks.batches import TaskBatches, evaluation_batches
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.records import Records
from scalelab.tasks.task import Splits, Task, is_known
from scalelab.training.checkpoint import Checkpoints, Weights


class TaskRun:
    """A task prepared for a model; seeds differ only in order, head and dropout."""

    def __init__(
        self,
        task: Task,
        splits: Splits,
        start: WarmStart,
        config: FinetuneConfig,
        workdir: pathlib.Path,
    ) -> None:
        opened = start.opened
        if task.kind == "texts" and opened.system.HAS_SOURCE:  # longer answers are cut
            longest = min(task.answer_len, opened.config.model.max_len)
            task = dataclasses.replace(task, answer_len=longest)
        self.task, self.splits, self.start = task, splits, start
        self.config, self.workdir = config, workdir
        adaptation, classifier = opened.system.ADAPTATION, start.classifier
        words, self.has_source = task.kind in kinds.GENERATED, opened.system.HAS_SOURCE
        # Texts are framed as in pre-training, but where a source has the place of the label.
        plain = (words and adaptation.source != "source") or classifier is not None
        added = () if plain else adaptation.added_tokens
        both_orders = adaptation.both_orders and not plain
        self.kind = kinds.load(task.kind)
        check_fits(opened, config, task.title, len(splits.train))
        if words != (config.head.kind == kinds.WORDS) or (words and classifier):
            raise ValueError(
                f"{task.title}: config.head.kind = {config.head.kind!r}: expected {kinds.WORDS!r}"
                " with --as=text, on a pre-training run, and only there"
            )
        if config.num_beams and task.kind != "texts":
            raise ValueError(
                f"{task.title} has labels, among which no beams search: leave config.num_beams out"
            )
        pairs = task.kind == Task.kind and task.relation != "single" and not self.has_source
        if config.head.kind == DECOMPOSABLE and not pairs:
            raise ValueError(
                f"{task.title}: config.head.kind = {DECOMPOSABLE!r} compares two texts: expected a"
                " task that labels pairs, such as mnli, and a model that reads no source"
            )
        self.source = adaptation.source if self.has_source and not words else None
        if self.source == "source" and getattr(self.kind, "PER_TOKEN", False):
            raise ValueError(
                f"{task.title} scores every token of its text, and {opened.config.system} declares"
                " Adaptation.source = 'source': its text is in the source alone"
            )
        main, metric = next(iter(splits.dev.values()), None), task.metrics[0]
        if config.patience and main and (why := metrics.undefined(metric, main.labels)):
            raise ValueError(
                f"config.patience stops by {metric}, which is undefined on this dev set: {why};"
                " set config.patience to None"
            )
        self.tokenizer = opened.tokenizer.with_added(added)
        self.tokenizer_digest = tokenizer_digest(opened.tokenizer_dir)
        frame = self.tokenizer.frame()
        if not plain:
            parts = (adaptation.begin, adaptation.between, adaptation.end)
            frame = Frame(*(tuple(map(self.tokenizer.token_id, part)) for part in parts))
        num_rows = opened.config.tokenizer.vocab_size + len(added)
        ids, cache_dir = self.tokenizer.special_ids, config.machine.cache_dir
        start_id = systems.special_ids(opened.system, ids)["start"] if self.has_source else None
        reading = self.reading = Reading(
            self.tokenizer, frame, config.max_len, cache_dir, self.tokenizer_digest, start_id
        )

        def encode(records: Records) -> TaskExamples:
            made = self.kind.encode(task, records, reading, both_orders)
            if self.source is None:
                return made
            rows = made.num_tokens if self.source == "both" else np.full(len(made), made.num_rows)
            return dataclasses.replace(made, beside=rows)

        self.encode = encode
        self.train = encode(splits.train).first(config.max_train_examples)
        self.dev = {name: r and encode(r) for name, r in splits.dev.items()}
        self.dev_there = {name: e for name, e in self.dev.items() if e is not None}
        self.test = {name: r and encode(r) for name, r in splits.test.items()}
        self.steps_per_epoch = -(-len(self.train) // config.batch_size)
        self.num_steps = max(1, round(config.epochs * self.steps_per_epoch))
        count = self.kind.num_rows(task, both_orders) if hasattr(self.kind, "num_rows") else 1
        self.learner = self._learner(count, num_rows, ids)
        if start.bodies is not None:
            self.learner.check_start(opened.params)
        # Parameters of an imported head, None for a new one; and how that was decided.
        self.head, self.head_note = self._head()
        # The rows of the token table that are trained, None for all; the learner of these.
        self.rows, self.trained = None, self.learner
        # Which train all rows, or none, or share them, or name them in a source.
        whole = self.learner.terms or config.feature_layers or config.sharing
        if not (whole or words or self.has_source):
            read = [e for e in (self.train, *self.dev.values()) if e is not None]
            path, width = f"body/{self.learner.net.body.TOKEN_TABLE}", opened.config.model.width
            ids = self.tokenizer.special_ids
            self.rows = rows.find(
                read, path, num_rows, width, self.num_steps, named=[*ids.values()]
            )
        if self.rows is not None:
            ids = self.rows.renumber_ids(self.tokenizer.special_ids)
            self.trained = self._learner(self.learner.net.num_rows, self.rows.size, ids)

    def _learner(self, num_rows: int, vocab_size: int, ids: Mapping[str, int]) -> FinetuneStep:
        """Builds the classifier and its optimizer, for `num_rows` rows of an example.

        `vocab_size` counts the rows of the token table, which may be narrow; `ids` are the rows of
        the special tokens in this table, by role.
        """
        config, opened = self.config, self.start.opened
        pretraining, optim = opened.config, config.optim
        sizes = dataclasses.replace(pretraining.model, dropout_rate=config.dropout_rate)
        body = systems.make_net(
            opened.system,
            sizes,
            pretraining.system_options,
            vocab_size=vocab_size,
            remat=pretraining.machine.remat,
            ids=ids,
        )
        if config.adapter_width:
            body = methods.add_adapters(body, config.adapter_width)
        if config.new_encoder_layers:
            # Here, as only this field needs it.
            from scalelab.finetuning.new_encoder import add_new_encoder

            body = add_new_encoder(body, config.new_encoder_layers)
        head, adaptation = config.head, opened.system.ADAPTATION
        num_outputs = kinds.num_outputs(self.task.kind, self.task.labels)
        terms = opened.own_terms if config.lm_weight and opened.predicts == "next" else ()
        # The body then takes more steps than a head. One task keeps the program of a task alone.
        several = config.sharing == "hard" and "," in (config.sharing_tasks or "")
        parts = ("body",) if self.task.kind in kinds.GENERATED else ("body", "head")
        if make_net := getattr(self.kind, "make_net", None):
            net = make_net(body, self.task, self.reading, config)
        else:
            mixed = (config.feature_layers or 0) if config.feature_mix else 0
            made = make_head(head, num_outputs, sizes.width, adaptation, mixed)
            given = num_rows, self.kind.vectors, self.source, self.reading.start
            net = Classifier(body, *made, *given)
        return FinetuneStep(
            net,
            adamw.adamw(**optim.without_rate, parts=parts if several else ()),
            self.kind.loss,
            terms,
            config.lm_weight,
            config.feature_layers,
            optim.layer_decay,
            sizes.num_layers,
            config.method,
            self.num_steps if config.method == methods.UNFREEZING else 0,
            pretrained_head=head.pretrained and not head.lstm_width,
        )

    def _head(self) -> tuple[ArrayPytree | None, str]:
        """Returns the head's initial parameters, None for new ones, and how that was decided."""
        title, classifier = self.task.title, self.start.classifier
        if classifier is None or self.start.bodies is None:
            return None, ""
        try:
            head, matching = classifier.head_for(self.task)
        except ValueError as error:
            return None, f"{title} gets a new head: {error}"
        own, changed = self.config.head, self.config.feature_layers
        if changed or (own.kind, own.lstm_width) != (classifier.kind, None):
            return None, f"{title} gets a new head: the config changes that of {classifier.path}"
        return head, f"{title} has the head of {classifier.path}: {matching}"

    # --- Devices, parameters, batches ----------------

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """All devices: the batch is split over data x fsdp, the model over fsdp x tensor."""
        machine = self.config.machine
        return sharding.make_mesh(fsdp=machine.fsdp_parallel, tensor=machine.tensor_parallel)

    def first_params(self, seed: int) -> Params:
        """Returns the parameters {"body", "head"} that a seed begins with."""
        body = None if self.start.bodies is None else self.start.bodies(seed)
        return self.learner.first_params(self.weights_seed(seed), body, self.head)

    def first_state(self, seed: int, params: Params) -> TrainState:
        """Returns the state before a seed's first step, given its first parameters."""
        narrow = params if self.rows is None else self.rows.narrow(params)
        return self.trained.init(self.weights_seed(seed), narrow)

    def batches(self, seed: int) -> TaskBatches:
        """Returns the training batches of a seed."""
        config = self.config
        order = seed if config.order_seed is None else config.order_seed
        ways = sharding.batch_ways(self.mesh)
        return TaskBatches(
            self.train, config.batch_size, config.max_len, order, config.group_batches, ways
        )

    def weights_seed(self, seed: int) -> int:
        """Returns the seed of the new head, of new rows of the embedding, and of dropout."""
        return seed if self.config.weights_seed is None else self.config.weights_seed

    def predict(
        self, predict: Callable[[dict[str, np.ndarray]], jax.Array], split: TaskExamples
    ) -> np.ndarray:
        """Computes the head's outputs for every example once: float32 [n, ..., C].

        Shorter batches are filled with zeros.

        Args:
          predict: batch -> scores [B, ..., C].
          split: n examples.
        """
        ways = sharding.batch_ways(self.mesh)
        size = -(-self.config.machine.eval_batch_size // ways) * ways
        made = evaluation_batches(split, size, self.config.max_len)
        under_way = [(ids, predict(batch)) for ids, batch in made]
        widest = np.max([scores.shape[1:] for _, scores in under_way], axis=0)
        found = np.zeros((len(split), *widest), np.float32)
        for ids, scores in under_way:
            real = ids >= 0
            found[(ids[real], *map(slice, scores.shape[1:]))] = np.asarray(scores)[real]
        return found

    def predict_with(self, params: Params, split: TaskExamples) -> np.ndarray:
        """Computes the outputs [n, ..., C] of the model with whole parameters {"body", "head"}."""
        program = compiled(self.learner, self.mesh)
        placed = program.place(params)
        return self.predict(lambda batch: program.predict(*placed, batch), split)

    # --- The seeds' folders ----------------

    def folder(self, seed: int) -> pathlib.Path:
        """Returns the run folder of a seed."""
        return self.workdir / f"seed{seed}"

    def describe(self, seed: int) -> dict[str, Any]:
        """Returns the content of config.json: every field, and what else decides the result."""
        config, opened = dataclasses.asdict(self.config), self.start.opened
        machine = config.pop("machine") | {"init": self.start.label}
        labels, named = self.task.labels, self.task.columns
        frame = {"frame": "imported"} if self.start.classifier else {}
        return frame | {
            "task": self.task.name,
            "relation": self.task.relation,
            "columns": None if is_known(self.task) else [*named.texts, named.label],
            "labels": None if labels is None else list(labels),
            "regression": self.task.regression,
            **({} if self.task.kind == Task.kind else {"kind": self.task.kind}),
            "seed": seed,
            "system": opened.config.system,
            "init": self.start.digest(seed),
            "tokenizer_digest": self.tokenizer_digest,
            "mnli_first": self.start.mnli_first,
            "model": dataclasses.asdict(opened.config.model)
            | {"dropout_rate": config["dropout_rate"]},
            "system_options": dict(opened.config.system_options),
            "data": {k: v for k, v in self.splits.digests.items() if k not in self.splits.test},
            **config,
            "machine": machine,
        }

    def claim(self, seed: int) -> dict[str, Any] | None:
        """Returns a seed's result if this very run is finished in its folder, else None.

        Raises:
          ValueError: its folder holds another run.
        """
        return run_folder.claim(self.folder(seed), self.describe(seed))

    def result(self, seed: int) -> dict[str, Any]:
        """Reads the result.json of a finished seed; raises ValueError if there is no sound one."""
        result = run_files.read_result(self.folder(seed))
        if result is None:
            raise ValueError(f"{self.folder(seed)} has no result.json")
        return json_files.dump(result)

    def save(self, seed: int, step: int, params: Params) -> None:
        """Keeps the parameters of a finished seed, and the tokenizer that goes with them."""
        folder = self.folder(seed)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        kept = Checkpoints(folder / "checkpoints", 1)
        kept.save(Weights(params, jnp.int32(step)), {})
        kept.close()
        self.tokenizer.save(self.start.opened.tokenizer_dir, folder / "tokenizer")
