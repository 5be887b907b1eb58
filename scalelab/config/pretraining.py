"""The config of a pre-training run: one frozen dataclass a group, the comment beside the field.

The defaults are the base config: RoBERTa-style pre-training of the benchmark protocol (byte-level
BPE, DOC-SENTENCES, MLM). `configs/base.py` makes the ConfigDict from them, and systems list in
`DEPARTURES` where they differ. Every field may change a result, except those of `machine`.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from scalelab.config.durations import durations
from scalelab.config.fields import (
    RENAMED,
    Budget,
    Count,
    Epochs,
    NotNegative,
    Part,
    Positive,
    Probability,
    Seed,
    between,
    choice,
    complete_options,
    fill,
)
from scalelab.config.fields import science as science
from scalelab.config.fields import science_diff as science_diff


class Shape(NamedTuple):
    """The shape of a model: attention heads, width and layers, written "2x128x2" in this order."""

    num_heads: int
    width: int
    num_layers: int

    @property
    def n_model(self) -> int:
        """N = 12 L H^2: parameters of the layers without biases and norms, where F = 4 H."""
        return 12 * self.num_layers * self.width**2

    def __str__(self) -> str:
        return f"{self.num_heads}x{self.width}x{self.num_layers}"

    @classmethod
    def parse(cls, text: str, *, divided: bool = True) -> "Shape":
        """Reads AxHxL; raises ValueError for another form, or if A does not divide H as it must.

        >>> Shape.parse("2x128x2").n_model
        393216
        """
        parts = [int(part) if part.isdecimal() else 0 for part in text.split("x")]
        if len(parts) != 3 or not all(parts):
            raise ValueError(
                f"shape {text!r}: expected AxHxL (heads x width x layers), such as 2x128x2"
            )
        shape = cls(*parts)
        if divided and shape.width % shape.num_heads:
            raise ValueError(
                f"shape {text!r}: {shape.num_heads} heads do not divide the width {shape.width}"
            )
        return shape

    @classmethod
    def from_json(cls, value: object) -> "Shape":
        """Reads {"A", "H", "L"}, as result.json has it; raises ValueError for anything else."""
        sizes = [value.get(name) for name in "AHL"] if isinstance(value, Mapping) else []
        if not sizes or any(type(size) is not int for size in sizes):
            raise ValueError("shape: expected whole numbers A, H and L")
        return cls(*sizes)


@dataclasses.dataclass(frozen=True)
class Net:
    """Shape and regularization of the model."""

    num_heads: Count = 2  # attention heads; must divide width
    width: Count = 128  # width of the residual stream
    num_layers: Count = 2  # transformer layers
    ffn_width: Count | None = None  # None: 4 * width
    max_len: Count = 512  # positions of the model
    dropout_rate: Probability = 0.1  # on embeddings, attention weights and each sublayer's output
    # Of the computation; parameters, softmax and losses stay float32.
    dtype: Annotated[str, choice("float32", "bfloat16")] = "float32"
    # None: the input's (tied); or "untied".
    output_embedding: Annotated[str, choice("untied")] | None = None
    # Of the feed-forward networks, and of the heads that have it in `transformers`; None: the
    # system's own.
    activation: Annotated[str, choice("gelu", "gelu_tanh", "relu", "silu")] | None = None
    norm_epsilon: Positive | None = None  # added to the variance in norms; None: the system's own

    @property
    def shape(self) -> Shape:
        """Heads, width and layers."""
        return Shape(self.num_heads, self.width, self.num_layers)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The tokenizer, trained on the training split."""

    # wordpiece, wordpiece_likelihood, bytebpe, bpe, unigram, word (whole words), char (characters)
    kind: str = "bytebpe"
    vocab_size: Count = 30_000  # pieces, special tokens included
    lowercase: bool = False  # True: drops case and accents


@dataclasses.dataclass(frozen=True)
class Data:
    """The corpus, and how its documents become examples."""

    # builtin, wikitext:DIR, text:GLOB, jsonl:GLOB, parquet:DIR, hf:NAME or tfds:NAME
    corpus: str = "builtin"
    format: str = "doc_sentences"  # how documents become examples
    # Invalid UTF-8: strict stops, replace goes on.
    errors: Annotated[str, choice("strict", "replace")] = "strict"
    keep_headings: bool = False  # keeps the headings of WikiText sections
    # Share of documents, where the source has no validation split. None: 100 documents or 50,000
    # words, or a tenth of the text if that is less, and at least 0.005; 0.005 of the built-in text.
    valid_rate: Probability | None = None
    order_seed: int | None = None  # seed of the examples' order; None: the run's seed


@dataclasses.dataclass(frozen=True)
class ShortPhase:
    """The first phase."""

    max_len: Count = 128  # tokens of an example
    batch_size: Count = 64  # examples


@dataclasses.dataclass(frozen=True)
class LongPhase:
    """The second phase."""

    max_len: Count = 512  # tokens of an example
    batch_size: Count = 16  # examples
    example_rate: Probability = 0.1  # its share of all examples; 0: no second phase
    # Its epochs for each epoch of the first phase; None: as many. 0 trains the first phase alone,
    # on the same examples that it has beside a second one.
    epoch_rate: Annotated[float, between(0, 10**9)] | None = None


@dataclasses.dataclass(frozen=True)
class AdamW:
    """The optimizer's fields that pre-training and fine-tuning share."""

    learning_rate: NotNegative = 1e-4  # at the end of the warm-up
    beta1: Probability = 0.9  # decay of the mean of gradients
    beta2: Probability = 0.999  # decay of the mean of squared gradients
    eps: Positive = 1e-6  # added to the root of the mean of squared gradients
    weight_decay: NotNegative = 0.01  # decoupled; not on biases and norms
    clip_norm: Positive | None = 1.0  # largest norm of the whole gradient; None: no clipping

    @property
    def without_rate(self) -> dict[str, Any]:
        """The arguments of `optim.adamw.adamw`."""
        names = ("beta1", "beta2", "eps", "weight_decay", "clip_norm")
        return {name: getattr(self, name) for name in names}


Schedule = Annotated[str, choice("linear", "cosine", "constant")]  # names in optim.adamw.SCHEDULES


@dataclasses.dataclass(frozen=True)
class Optim(AdamW):
    """AdamW, its schedule and the budget."""

    # After the warm-up: linear or cosine, to zero at the end of the budget; or constant.
    schedule: Schedule = "linear"
    total_epochs: Epochs | None = 10.0  # the budget: exactly one of the five
    total_steps: Annotated[int, between(1, 10**15)] | None = None  # optimizer steps
    total_tokens: Budget | None = None  # training tokens, without padding
    total_flops: Budget | None = None  # training FLOPs
    total_secs: Budget | None = None  # seconds of training
    # In the unit of the budget; epochs count steps.
    warmup_steps: Annotated[int, between(0, 10**15)] | None = 1000
    warmup_tokens: NotNegative | None = None  # training tokens, without padding
    warmup_flops: NotNegative | None = None  # training FLOPs
    warmup_secs: NotNegative | None = None  # seconds of training


@dataclasses.dataclass(frozen=True)
class Eval:
    """Validation during training."""

    # None: chosen so that all validations take at most 15% of the training (`choose_validation`).
    every_steps: Count | None = 1000  # training steps between two validations
    num_examples: Count | None = 2000  # validation examples, of the phase in progress
    pairs: str | None = None  # file or folder of minimal pairs that training evaluates
    pairs_every_words: Count | None = None  # words of training text between two evaluations
    pairs_per_group: Count | None = None  # the first pairs of each group; None: all


@dataclasses.dataclass(frozen=True)
class Machine:
    """What may differ between two runs of the same experiment."""

    data_parallel: int = -1  # devices on each mesh axis; -1: those that are left
    fsdp_parallel: int = 1  # devices that share the examples and hold a part of the model each
    tensor_parallel: int = 1  # devices that split heads, FFN and vocabulary
    num_microbatches: Count = 1  # gradient accumulation within a step
    # What the backward pass recomputes.
    remat: Annotated[str, choice("none", "dots", "full")] = "none"
    # device: examples lie on the device if they fit, else as "tf"; tf: the host makes the batches
    # by tf.data where TensorFlow is installed, else as "numpy"; numpy: in a thread.
    loader: Annotated[str, choice("device", "tf", "numpy")] = "device"
    prefetch: Annotated[int, between(0, 65_536)] = 4  # batches made ahead
    # most steps of one program, at most 1024; None: about a second
    steps_per_dispatch: Annotated[int, between(1, 1024)] | None = None
    num_workers: Annotated[int, between(1, 1024)] = 2  # processes that prepare data
    cache_dir: str = "~/.cache/scalelab"  # prepared corpora, tokenizers, examples
    compile_cache_dir: str | None = "~/.cache/scalelab/xla"  # compiled programs; None: not kept
    checkpoint_every_steps: Count = 500  # training steps between two checkpoints
    num_checkpoints: Count = 2  # the last so many are kept, and the best
    kept_shares: tuple[Part, ...] | None = None  # keep a checkpoint at these shares: (0.25, 0.5)
    log_every_steps: Count = 50  # training steps between two lines of metrics
    # None: metrics.jsonl alone. Install wandb or trackio yourself; WANDB_MODE=offline works.
    tracker: Annotated[str, choice("tensorboard", "wandb", "trackio")] | None = "tensorboard"
    distributed: bool = False  # several processes: jax.distributed.initialize()
    init: str | None = None  # folder of the run that gives the parameters; --init sets it
    # Runs whose models the system or objectives read, untrained: "teacher=RUN,other=RUN".
    frozen: str | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    """One run, every field decided."""

    system: str = "roberta"  # the model and its recipe
    # Losses to sum, with optional weights: mlm+50*rtd
    objective: str = "mlm"
    # Share of tokens that masked objectives predict.
    mask_rate: Part = 0.15
    # Masks (and all that masked objectives draw for an example): epoch e has those of copy e modulo
    # so many, as if masked before training; BERT's code has 10. None: drawn anew at every step.
    mask_copies: Count | None = None
    seed: Seed = 0  # seed of parameters, order of the examples, masks, dropout
    # Settings that only this system, these objectives or this format have.
    system_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    objective_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    format_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: Net = Net()
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    short: ShortPhase = ShortPhase()
    long: LongPhase = LongPhase()
    optim: Optim = Optim()
    eval: Eval = Eval()
    machine: Machine = Machine()
    init: str | None = None  # digest of the first parameters; --init sets it. None: random
    frozen: str | None = None  # digests of the models in machine.frozen, which sets it

    @property
    def objective_weights(self) -> dict[str, float]:
        """Names and weights of the summed losses: "mlm+50*rtd" -> {"mlm": 1.0, "rtd": 50.0}."""
        return parse_objective(self.objective)

    @property
    def phases(self) -> tuple[ShortPhase | LongPhase, ...]:
        """The phases that are trained: one or both."""
        left_out = self.long.example_rate == 0 or self.long.epoch_rate == 0
        return (self.short,) if left_out else (self.short, self.long)


def parse_objective(text: str) -> dict[str, float]:
    """Reads a weighted sum of objectives; a name without a weight has 1.

    Raises:
      ValueError: a name twice or none, or a weight that is no positive number.

    >>> parse_objective("mlm+50*rtd")
    {'mlm': 1.0, 'rtd': 50.0}
    """
    found: dict[str, float] = {}
    for part in text.split("+"):
        weight, star, name = part.rpartition("*")
        try:
            value = float(weight) if star else 1.0
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ValueError(
                f"config.objective = {text!r}: the weight {weight!r} is no positive number; write"
                " 50*NAME"
            )
        if not name or name in found:
            raise ValueError(
                f"config.objective = {text!r}: expected different objectives joined by '+'"
            )
        found[name] = value
    return found


# What only other configs have, and what these are for.
FOREIGN_FIELDS = {"recipe": "a fine-tuning (scalelab.eval)", "stages": "a study (scalelab.study)"}


OLD_FIELD = re.compile(rf"net\.({'|'.join(field.name for field in dataclasses.fields(Net))})\b")


def rename(value: Any) -> Any:
    """Returns the nested values of a study with "model" in place of "net".

    Renamed are groups with the fields of a model, and texts that begin with such a field, as
    "net.width=64" does. A file net.txt and a variant "net" keep their names.
    """
    if isinstance(value, str):
        return "model" + value[len("net") :] if OLD_FIELD.match(value) else value
    if isinstance(value, Mapping):
        is_old = isinstance(value.get("net"), Mapping) and "width" in value["net"]
        return {
            "model" if is_old and name == "net" else rename(name): rename(own)
            for name, own in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(map(rename, value))
    return value


def with_moved_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of an older run folder with its fields in their places of today."""
    values = {RENAMED.get(name, name): own for name, own in values.items()}
    data = values.get("data")
    if not isinstance(data, Mapping) or data.get("short_rate") is None:
        return values
    rate, data = data["short_rate"], {k: v for k, v in data.items() if k != "short_rate"}
    options = {"short_rate": rate} if data.get("format") == "segment_pair" else {}
    return {**values, "data": data, "format_options": options}


def resolve(values: Mapping[str, Any]) -> Config:
    """Turns nested values (a dict, or ConfigDict.to_dict()) into a checked Config.

    Raises:
      ValueError: an unknown or missing field, a wrong type, or values that cannot go together.
    """
    for field, kind in FOREIGN_FIELDS.items():
        if field in values:
            raise ValueError(f"this is a config of {kind}, not of a pre-training run")
    config = fill(Config, values)
    modules = {
        "system_options": ("systems", [config.system]),
        "objective_options": ("objectives", list(config.objective_weights)),
        "format_options": ("formats", [config.data.format]),
    }
    given = {
        group: complete_options(group, *module, getattr(config, group))
        for group, module in modules.items()
    }
    config = dataclasses.replace(config, **given)
    net, num_microbatches = config.model, config.machine.num_microbatches
    if net.width % net.num_heads:
        fits = [a for a in range(1, min(net.width, 64) + 1) if net.width % a == 0]
        near = sorted(sorted(fits, key=lambda a: abs(a - net.num_heads))[:3])
        raise ValueError(
            f"config.model.num_heads = {net.num_heads} does not divide config.model.width ="
            f" {net.width}; nearest that do: {', '.join(map(str, near))}"
        )
    for name, phase in zip(("short", "long"), config.phases, strict=False):
        if phase.max_len > net.max_len:
            raise ValueError(
                f"config.{name}.max_len = {phase.max_len} exceeds the model's positions,"
                f" config.model.max_len = {net.max_len}; raise that or shorten the phase"
            )
        if phase.batch_size % num_microbatches:
            raise ValueError(
                f"config.{name}.batch_size = {phase.batch_size} is not a multiple of"
                f" config.machine.num_microbatches = {num_microbatches}"
            )
    if (config.eval.pairs is None) != (config.eval.pairs_every_words is None):
        raise ValueError("config.eval.pairs and config.eval.pairs_every_words need each other")
    durations(config.optim)
    return choose_validation(config)


# Share of a run's steps: less than 15%, because a pass over a batch may cost more than a third.
VALIDATION_SHARE = 0.12
NUM_DRAWS = 4  # masks for which an evaluation reads each batch; see `step.compile_evaluation`
FEW_EXAMPLES = 200  # a validation has more, unless that would be its only way to be cheap


def choose_validation(config: Config) -> Config:
    """Decides eval.every_steps and eval.num_examples where they are None.

    A validation costs a third of a training step for each pass over a batch, and reads each batch
    NUM_DRAWS times. There are 10 validations beside that of the untrained model; or 5, 3, 2 or 1,
    so that each has 200 examples or more; all of them cost VALIDATION_SHARE of the steps at most. A
    run whose number of steps is not known from its config has the protocol's values.
    """
    evaluation, default = config.eval, Eval()
    if evaluation.every_steps is not None and evaluation.num_examples is not None:
        return config
    clock, total, _ = durations(config.optim)
    short = config.short
    per_step = {"steps": 1, "tokens": short.batch_size * short.max_len}.get(clock)
    every, num = default.every_steps, default.num_examples
    assert every is not None and num is not None
    if per_step is not None:
        steps = max(1, int(total / per_step))
        shares = (1 - config.long.example_rate, config.long.example_rate)
        sizes = [phase.batch_size for phase in config.phases]
        for count in (10, 5, 3, 2, 1):
            every = evaluation.every_steps or min(default.every_steps or 0, -(-steps // count))
            # Passes over the batches of one example, as a number of examples.
            done = [share * steps / every + 1 for share in shares[: len(sizes)]]
            cost = sum(n / size for n, size in zip(done, sizes, strict=True)) + 1 / sizes[0]
            most = int(3 * VALIDATION_SHARE * steps / (NUM_DRAWS * cost))
            num = evaluation.num_examples or min(default.num_examples or 0, most)
            if most >= min(num, FEW_EXAMPLES) and num >= FEW_EXAMPLES:
                break
        num = max(num, short.batch_size)
    chosen = dataclasses.replace(
        evaluation,
        every_steps=evaluation.every_steps or every,
        num_examples=evaluation.num_examples or num,
    )
    return dataclasses.replace(config, eval=chosen)
