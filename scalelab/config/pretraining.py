"""The config of a pre-training run: one frozen dataclass a group, the comment beside the field.

The defaults are the control: RoBERTa-style pre-training of the benchmark protocol (byte-level BPE,
DOC-SENTENCES, MLM). `configs/base.py` makes the ConfigDict from them, and systems list in
`DEPARTURES` where they differ. Every field may change a result, except those of `machine`.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from scalelab.config.durations import check_warmup, durations
from scalelab.config.fields import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    choice,
    fill,
    require,
)
from scalelab.config.fields import (
    science as science,
)
from scalelab.config.fields import (
    science_diff as science_diff,
)


class Shape(NamedTuple):
    """The shape of a net: attention heads, width and layers, written "2x128x2" in this order."""

    num_heads: int
    width: int
    num_layers: int

    @property
    def n_model(self) -> int:
        """The protocol's size N = 12 L H^2."""
        return 12 * self.num_layers * self.width**2

    def __str__(self) -> str:
        return f"{self.num_heads}x{self.width}x{self.num_layers}"


@dataclasses.dataclass(frozen=True)
class Net:
    """Shape and regularisation of the net."""

    num_heads: int = 2  # attention heads; must divide width
    width: int = 128  # of the residual stream
    num_layers: int = 2
    ffn_width: int | None = None  # None: 4 * width
    max_len: int = 512  # positions of the net
    dropout_rate: float = 0.1  # on embeddings, attention weights and each sublayer's output
    dtype: str = "float32"  # of the computation; parameters, softmax and losses stay float32
    output_embedding: str | None = None  # None: the input's (tied); or "untied"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The tokenizer, trained on the training split."""

    kind: str = "bytebpe"  # wordpiece, bytebpe, bpe, unigram
    vocab_size: int = 30_000  # pieces, special tokens included
    lowercase: bool = False  # True: drops case and accents


@dataclasses.dataclass(frozen=True)
class Data:
    """The corpus, and how its documents become examples."""

    corpus: str = "builtin"  # or wikitext:DIR, text:GLOB, jsonl:GLOB, parquet:DIR, tfds:NAME
    format: str = "doc_sentences"  # doc_sentences, segment_pair, full_sentences
    errors: str = "strict"  # invalid UTF-8: strict stops, replace goes on
    keep_headings: bool = False  # of WikiText sections
    short_rate: float = 0.1  # share of segment pairs with a random shorter target length
    valid_rate: float = 0.005  # share of documents, where the source has no validation split
    order_seed: int | None = None  # of the examples' order; None: the run's seed


@dataclasses.dataclass(frozen=True)
class ShortPhase:
    """The first phase."""

    max_len: int = 128  # tokens of an example
    batch_size: int = 64  # examples


@dataclasses.dataclass(frozen=True)
class LongPhase:
    """The second phase."""

    max_len: int = 512  # tokens of an example
    batch_size: int = 16  # examples
    example_rate: float = 0.1  # its share of all examples; 0: no second phase
    # Its epochs for each epoch of the first phase; None: as many. 0 trains the first phase alone,
    # on the same examples that it has beside a second one.
    epoch_rate: float | None = None


@dataclasses.dataclass(frozen=True)
class AdamW:
    """The optimizer's fields that pre-training and fine-tuning share."""

    learning_rate: float = 1e-4  # at the end of the warm-up
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01  # decoupled; not on biases and norms
    clip_norm: float | None = 1.0  # largest norm of the whole gradient; None: no clipping


@dataclasses.dataclass(frozen=True)
class Optim(AdamW):
    """AdamW, its schedule and the budget."""

    schedule: str = "linear"  # to zero at the end of the budget
    total_epochs: float | None = 10.0  # the budget: exactly one of the five
    total_steps: int | None = None
    total_tokens: float | None = None
    total_flops: float | None = None
    total_secs: float | None = None
    warmup_steps: int | None = 1000  # on the clock of the budget; epochs count steps
    warmup_tokens: float | None = None
    warmup_flops: float | None = None
    warmup_secs: float | None = None


@dataclasses.dataclass(frozen=True)
class Eval:
    """Validation during training."""

    every_steps: int = 1000
    num_examples: int = 2000


@dataclasses.dataclass(frozen=True)
class Machine:
    """What may differ between two runs of the same experiment."""

    data_parallel: int = -1  # devices on each mesh axis; -1: those that are left
    fsdp_parallel: int = 1
    tensor_parallel: int = 1
    num_microbatches: int = 1  # gradient accumulation within a step
    remat: str = "none"  # what the backward pass recomputes: none, dots, full
    loader: str = "tf"  # tf.data where TensorFlow is installed, else numpy; or "numpy"
    prefetch: int = 4  # batches made ahead
    num_workers: int = 2  # processes that prepare data
    cache_dir: str = "~/.cache/scalelab"  # prepared corpora, tokenizers, examples
    compile_cache_dir: str | None = "~/.cache/scalelab/xla"
    checkpoint_every_steps: int = 500
    num_checkpoints: int = 2  # the last so many are kept, and the best
    log_every_steps: int = 50
    distributed: bool = False  # several processes: jax.distributed.initialize()
    init: str | None = None  # folder of the run that gives the parameters; --init sets it


@dataclasses.dataclass(frozen=True)
class Config:
    """One run, every field decided."""

    system: str = "roberta"  # a file of scalelab/systems/
    objective: str = "mlm"  # losses to sum: mlm, mlm+nsp, clm
    mask_rate: float = 0.15  # share of tokens that MLM predicts
    seed: int = 0  # of parameters, order of the examples, masks, dropout
    net: Net = Net()
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    short: ShortPhase = ShortPhase()
    long: LongPhase = LongPhase()
    optim: Optim = Optim()
    eval: Eval = Eval()
    machine: Machine = Machine()
    init: str | None = None  # digest of the first parameters; --init sets it. None: random

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives whose losses are summed: "mlm+nsp" -> ("mlm", "nsp")."""
        return tuple(self.objective.split("+"))

    @property
    def phases(self) -> tuple[ShortPhase | LongPhase, ...]:
        """The phases that are trained: one or both."""
        left_out = self.long.example_rate == 0 or self.long.epoch_rate == 0
        return (self.short,) if left_out else (self.short, self.long)


# What only other configs have, and what these are for.
OTHERS = {"recipe": "a fine-tuning (scalelab.eval)", "stages": "a study (scalelab.study)"}


def resolve(values: Mapping[str, Any]) -> Config:
    """Turns nested values (a dict, or ConfigDict.to_dict()) into a checked Config.

    Raises:
      ValueError: an unknown or missing field, a wrong type, or values that cannot go together.
    """
    for field, kind in OTHERS.items():
        if field in values:
            raise ValueError(f"this is a config of {kind}, not of a pre-training run")
    config = fill(Config, values)
    _check(config)
    return config


def _check(config: Config) -> None:
    """Refuses values that no net or data could satisfy."""
    require(config, AT_LEAST_1,
        "net.num_heads", "net.width", "net.num_layers", "net.ffn_width", "net.max_len",
        "tokenizer.vocab_size", "eval.every_steps", "eval.num_examples",
        "machine.num_microbatches", "machine.num_checkpoints", "machine.log_every_steps",
        "machine.checkpoint_every_steps", "machine.num_workers",
        "short.max_len", "short.batch_size", "long.max_len", "long.batch_size",
    )  # fmt: skip
    require(config, NOT_NEGATIVE, "machine.prefetch", "long.epoch_rate")
    require(config, PROBABILITY,
        "net.dropout_rate", "mask_rate", "long.example_rate", "data.short_rate", "data.valid_rate",
    )  # fmt: skip
    require(config, ("an integer of 64 bits", _fits_64_bits), "seed", "data.order_seed")
    require(config, choice("untied", None), "net.output_embedding")
    require(config, choice("float32", "bfloat16"), "net.dtype")
    require(config, choice("strict", "replace"), "data.errors")
    require(config, choice("tf", "numpy"), "machine.loader")
    check_optim(config)
    _check_heads(config.net)
    for name, phase in zip(("short", "long"), config.phases, strict=False):
        _check_phase(name, phase, config)
    if config.mask_rate == 0 and "mlm" in config.objectives:
        raise ValueError("config.mask_rate = 0.0 leaves the objective 'mlm' nothing to predict")
    clock, total, warmup = durations(config.optim)
    if clock != "epochs":
        check_warmup(clock, total, warmup)


def _fits_64_bits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _check_heads(net: Net) -> None:
    if net.width % net.num_heads:
        fits = [a for a in range(1, min(net.width, 64) + 1) if net.width % a == 0]
        near = sorted(fits, key=lambda a: abs(a - net.num_heads))[:3]
        raise ValueError(
            f"config.net.num_heads = {net.num_heads} does not divide config.net.width ="
            f" {net.width}; nearest that do: {', '.join(map(str, sorted(near)))}"
        )


def _check_phase(name: str, phase: ShortPhase | LongPhase, config: Config) -> None:
    if phase.max_len > config.net.max_len:
        raise ValueError(
            f"config.{name}.max_len = {phase.max_len} exceeds the net's positions,"
            f" config.net.max_len = {config.net.max_len}; raise that or shorten the phase"
        )
    if phase.batch_size % config.machine.num_microbatches:
        raise ValueError(
            f"config.{name}.batch_size = {phase.batch_size} is not a multiple of"
            f" config.machine.num_microbatches = {config.machine.num_microbatches}"
        )


def check_optim(config: Any) -> None:
    """Refuses an optimizer that could only diverge, in a config with a group `optim`."""
    require(config, NOT_NEGATIVE, "optim.learning_rate", "optim.weight_decay")
    require(config, PROBABILITY, "optim.beta1", "optim.beta2")
    require(config, POSITIVE, "optim.eps", "optim.clip_norm")


def to_json(config: Config | Mapping[str, Any]) -> str:
    """Serialises every field, for WORKDIR/config.json."""
    values = dataclasses.asdict(config) if dataclasses.is_dataclass(config) else config
    return json.dumps(values, indent=1)
