"""The peers in PyTorch: classes of `transformers` with our weights, on CPU in float32.

`Stock` and `Tuned` are sides of benchmarks.step, `Finetuning` is a loop like that of `run_glue`,
and `Decoding` a loop of `generate`.
"""

import dataclasses
import functools
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from flax import traverse_util

from benchmarks import common
from scalelab import systems
from scalelab.config import pretraining
from scalelab.config.fields import make_options
from scalelab.finetuning import kinds
from scalelab.interop import config_json, convert, maps
from scalelab.training.blueprint import Blueprint

if TYPE_CHECKING:
    from scalelab.finetuning.run import TaskRun
    from scalelab.tasks.records import Records

Tensors = dict[str, torch.Tensor]


def make_model(
    system: str,
    net: pretraining.Net,
    vocab_size: int,
    name: str | None = None,
    params: Any = None,
    labels: list[str] | None = None,
) -> Any:
    """Makes a class of transformers at the sizes of a model of ours.

    Args:
      system: name of the system, with a map in interop.maps.
      net: config.model.
      vocab_size: V.
      name: name of the class; None: the family's first one.
      params: our parameters to copy; None: random ones.
      labels: a classifier's labels, ["0"] for a score; None: no classifier.
    """
    family = maps.load(system)
    architecture = next(a for a in family.architectures if name in (None, a.name))
    options = make_options(systems.load(system), {})
    own = dataclasses.asdict(options) if options else {}
    fields = own | dataclasses.asdict(net) | {"vocab_size": vocab_size, "num_segments": 1}
    fields["ffn_width"] = net.ffn_width or 4 * net.width
    ids = {"pad": systems.special_ids(systems.load(system)).get("pad")}
    made = config_json.make_config(family, architecture, fields, ids, labels, labels == ["0"])
    config = transformers.AutoConfig.for_model(**made)
    model = getattr(transformers, architecture.name)(config)
    if params is not None:
        flat = traverse_util.flatten_dict(params, sep="/")
        found = convert.to_tensors(family.rows(architecture), flat)
        for key, parameter in model.named_parameters():
            parameter.data.copy_(torch.tensor(found.pop(key)))
        assert not found, found.keys()
    return model


def make_adamw(model: Any, optim: pretraining.AdamW) -> torch.optim.AdamW:
    """Makes fused AdamW with the numbers of a config; biases and norms do not decay."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1],
         "weight_decay": optim.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]  # fmt: skip
    betas = (optim.beta1, optim.beta2)
    return torch.optim.AdamW(groups, lr=optim.learning_rate, betas=betas, eps=optim.eps, fused=True)


def update(model: Any, optimizer: torch.optim.AdamW, optim: pretraining.AdamW) -> None:
    """Clips the gradients and takes a step."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm or float("inf"))
    optimizer.step()
    optimizer.zero_grad()


# --- Pre-training steps ---------------------------------------------------------------------------


class Stock:
    """The class with its default attention and its own loss: every position through the head.

    It starts from our parameters and takes our masked batch.
    """

    compile_secs = 0.0

    def __init__(
        self, run: Blueprint, batch: dict[str, np.ndarray], params: Any, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.run, self.inputs = run, class_inputs(run.system.PREDICTS == "next", batch)
        made, size = run.config, run.config.tokenizer.vocab_size
        if made.system in common.OF_LAYERS:
            self.model: Any = Layers(run, params)
        else:
            self.model = make_model(made.system, made.model, size, params=params)
        self.optimizer = make_adamw(self.model, made.optim)

    def forward(self) -> torch.Tensor:
        """Returns the loss of the batch."""
        return self.model(**self.inputs).loss

    def loss(self) -> float:
        """Returns the loss of the batch without dropout."""
        self.model.eval()
        with torch.no_grad():
            return self.forward().item()

    def __call__(self, steps: int) -> None:
        """Takes steps."""
        self.model.train()
        for _ in range(steps):
            self.forward().backward()
            update(self.model, self.optimizer, self.run.config.optim)


class Tuned(Stock):
    """The head on the predicted positions alone, as ours."""

    def __init__(
        self, run: Blueprint, batch: dict[str, np.ndarray], params: Any, threads: int
    ) -> None:
        super().__init__(run, batch, params, threads)
        if run.system.HAS_SOURCE:
            self.forward = torch.compile(super().forward)
            return
        labels = self.inputs.pop("labels")
        self.pair_labels = self.inputs.pop("next_sentence_label", None)
        if run.system.PREDICTS == "next":  # position t scores token t + 1
            labels = labels.roll(-1, dims=1)
            labels[:, -1] = -100
        self.places = (labels.flatten() != -100).nonzero().flatten()
        self.targets = labels.flatten()[self.places]

    def forward(self) -> torch.Tensor:
        """Returns the loss of the batch."""
        entropy = torch.nn.functional.cross_entropy
        made = self.model.base_model(**self.inputs)
        chosen = made[0].flatten(0, 1)[self.places]
        if self.pair_labels is None:
            return entropy(self.model.lm_head(chosen), self.targets)
        pairs = self.model.cls.seq_relationship(made[1])
        mlm = entropy(self.model.cls.predictions(chosen), self.targets)
        return mlm + entropy(pairs, self.pair_labels)


class Layers(torch.nn.Module):
    """A language model of torch.nn's own layers, with our weights: `lstm` and `gcnn`."""

    def __init__(self, run: Blueprint, params: Any) -> None:
        super().__init__()
        net, self.system = run.config.model, run.config.system
        self.rate = net.dropout_rate
        flat = traverse_util.flatten_dict(params, sep="/")
        own = {k.rpartition("layer/")[2]: torch.tensor(np.asarray(v)) for k, v in flat.items()}
        table = next(value for name, value in own.items() if name.endswith("tokens/table"))
        self.table = torch.nn.Embedding.from_pretrained(table, freeze=False)
        width, count = net.width, net.num_layers
        if self.system == "lstm":
            self.layers = torch.nn.LSTM(width, width, count, batch_first=True, dropout=self.rate)
            for n in range(count):
                cells = {"weight_ih": own["input/kernel"][n].T, "bias_ih": own["input/bias"][n]}
                cells |= {"weight_hh": own["recurrent_kernel"][n].T}
                for name, value in (cells | {"bias_hh": torch.zeros(4 * width)}).items():
                    getattr(self.layers, f"{name}_l{n}").data.copy_(value)
            return
        taps = own["taps/kernel"].reshape(count, -1, width, 2 * width).flip(1)
        conv = functools.partial(torch.nn.Conv1d, width, 2 * width, taps.shape[1])
        padding = taps.shape[1] - 1
        self.layers = torch.nn.ModuleList(conv(padding=padding) for _ in range(count))
        for layer, kernel, bias in zip(self.layers, taps, own["taps/bias"], strict=True):
            layer.weight.data.copy_(kernel.permute(2, 1, 0))
            layer.bias.data.copy_(bias)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **unread: Any) -> Any:
        """Returns an output with the loss of the next tokens."""
        del unread
        functional, length = torch.nn.functional, input_ids.shape[1]
        factor = self.table.embedding_dim**0.5 if self.system == "lstm" else 1.0
        x = functional.dropout(self.table(input_ids) * factor, self.rate, self.training)
        if self.system == "lstm":
            x = functional.dropout(self.layers(x)[0], self.rate, self.training)
        else:
            x = x.transpose(1, 2)
            for layer in self.layers:
                y = functional.glu(layer(x)[..., :length], dim=1)
                x = (x + functional.dropout(y, self.rate, self.training)) * 0.5**0.5
            x = x.transpose(1, 2)
        scores = functional.linear(x[:, :-1].flatten(0, 1), self.table.weight)
        loss = functional.cross_entropy(scores, labels[:, 1:].flatten())
        return types.SimpleNamespace(loss=loss)


def class_inputs(causal: bool, batch: dict[str, np.ndarray]) -> Tensors:
    """Converts a prepared batch to the inputs and labels of a class of transformers.

    Args:
      causal: True if every token is predicted, False for masked ones.
      batch: tokens [B, T], lengths [B] and the arrays of "mlm"; or source and targets.
    """
    if "source" in batch:  # without padding
        named = {"input_ids": "source", "decoder_input_ids": "tokens", "labels": "targets"}
        return {k: torch.tensor(np.asarray(batch[v], np.int64)) for k, v in named.items()}
    labels = np.array(batch["tokens"])
    if not causal:
        labels = np.full(batch["tokens"].shape, -100)
        for row, chosen in enumerate(batch["mlm_weights"] > 0):
            labels[row, batch["mlm_positions"][row][chosen]] = batch["mlm_targets"][row][chosen]
    places = np.arange(labels.shape[1])
    made = {
        "input_ids": batch["tokens"],
        "attention_mask": places < batch["lengths"][:, None],
        "labels": labels,
    }
    if "random_second" in batch:
        made["token_type_ids"] = places >= batch["second_starts"][:, None]
        made["next_sentence_label"] = batch["random_second"]
    return {name: torch.tensor(np.asarray(x, np.int64)) for name, x in made.items()}


# --- Fine-tuning and decoding ---------------------------------------------------------------------


class Finetuning:
    """Fine-tuning as `run_glue` does it: padded to the longest of a batch, fused AdamW, clipped."""

    def __init__(self, run: "TaskRun", threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.run, opened = run, run.start.opened
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(opened.tokenizer_dir)
        net = dataclasses.replace(opened.config.model, dropout_rate=run.config.dropout_rate)
        self.model = make_model(
            "bert", net, opened.config.tokenizer.vocab_size, "BertForSequenceClassification",
            labels=[str(i) for i in range(kinds.num_outputs(run.task.kind, run.task.labels))],
        )  # fmt: skip
        self.optimizer = make_adamw(self.model, run.config.optim)
        self.schedule = transformers.get_linear_schedule_with_warmup(
            self.optimizer, round(run.config.optim.warmup_rate * run.num_steps), run.num_steps
        )
        self.collate = transformers.DataCollatorWithPadding(self.tokenizer)
        self.train_rows = self.encode(run.splits.train)
        self.dev_rows = [
            row for records in run.splits.dev.values() if records for row in self.encode(records)
        ]

    def encode(self, records: "Records") -> list[dict[str, Any]]:
        """Tokenises records; batches are padded when they are made."""
        made = self.tokenizer(*records.texts, truncation=True, max_length=self.run.config.max_len)
        labels = records.labels.tolist()
        return [{k: made[k][i] for k in made} | {"label": labels[i]} for i in range(len(labels))]

    def loader(self, rows: list[dict[str, Any]], size: int, shuffle: bool) -> Any:
        """Batches rows, each batch padded to its longest."""
        return torch.utils.data.DataLoader(rows, size, shuffle=shuffle, collate_fn=self.collate)

    def num_tokens(self, ids: np.ndarray) -> int:
        """Counts the real tokens of training examples."""
        return sum(len(self.train_rows[i]["input_ids"]) for i in ids)

    def train(self, ids: np.ndarray) -> None:
        """Takes the steps that these examples make."""
        self.model.train()
        rows = [self.train_rows[i] for i in ids]
        for batch in self.loader(rows, self.run.config.batch_size, shuffle=True):
            self.model(**batch).loss.backward()
            update(self.model, self.optimizer, self.run.config.optim)
            self.schedule.step()

    def evaluate(self) -> None:
        """Scores the dev sets."""
        self.model.eval()
        size = self.run.config.machine.eval_batch_size
        with torch.no_grad():
            for batch in self.loader(self.dev_rows, size, shuffle=False):
                self.model(**batch).logits.numpy()


class Decoding:
    """Greedy `generate` of a system's class, with its key-value cache.

    Inputs [B, P] are prompts, or sources whose texts begin with the token `start`.
    """

    def __init__(
        self, run: Blueprint, params: Any, inputs: np.ndarray, threads: int, start: int | None
    ) -> None:
        torch.set_num_threads(threads)
        config, self.start = run.config, start
        model = make_model(config.system, config.model, config.tokenizer.vocab_size, params=params)
        self.model, self.inputs = model.eval(), torch.tensor(inputs, dtype=torch.long)

    def __call__(self, new_tokens: int) -> np.ndarray:
        """Returns new tokens [B, new_tokens]."""
        own = {} if self.start is None else {"decoder_start_token_id": self.start}
        with torch.inference_mode():
            found = self.model.generate(
                self.inputs, attention_mask=torch.ones_like(self.inputs),
                max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False,
                use_cache=True, pad_token_id=0, eos_token_id=-1, **own,
            )  # fmt: skip
        return found[:, -new_tokens:].numpy()
