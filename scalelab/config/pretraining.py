"""The resolved config of a run: frozen dataclasses, filled strictly from a ConfigDict.

`configs/base.py` holds the values and says what each is for; this file holds names and types.
Everything below `machine` must not change a result; every other field is science and may.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from scalelab.config.fields import fill, flatten
from scalelab.runs.clocks import check_warmup, durations


@dataclasses.dataclass(frozen=True)
class Net:
    """Shape and regularisation of the net; `None` for `ffn_width` means 4 * width."""

    num_heads: int
    width: int
    num_layers: int
    ffn_width: int | None
    max_len: int
    dropout_rate: float
    dtype: str
    output_embedding: str | None


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Kind, size and casing of the tokenizer trained on the training split."""

    kind: str
    vocab_size: int
    lowercase: bool


@dataclasses.dataclass(frozen=True)
class Data:
    """Corpus, and how its documents become examples."""

    corpus: str
    format: str
    errors: str
    keep_headings: bool
    short_rate: float
    valid_rate: float
    order_seed: int | None


@dataclasses.dataclass(frozen=True)
class ShortPhase:
    """The first phase: maximum length in tokens and batch size in examples."""

    max_len: int
    batch_size: int


@dataclasses.dataclass(frozen=True)
class LongPhase:
    """The second phase; it holds `example_rate` of all examples, 0 leaves it out.

    `epoch_rate` is how often its examples are read for each time that the first phase's are; None:
    as often. With 0 they are left out, and the first phase has the examples that it would have.
    """

    max_len: int
    batch_size: int
    example_rate: float
    epoch_rate: float | None


@dataclasses.dataclass(frozen=True)
class Optim:
    """AdamW, its schedule and the budget: one `total_*` is set, and `warmup_*` on its clock."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float | None
    schedule: str
    total_epochs: float | None
    total_steps: int | None
    total_tokens: float | None
    total_flops: float | None
    total_secs: float | None
    warmup_steps: int | None
    warmup_tokens: float | None
    warmup_flops: float | None
    warmup_secs: float | None


@dataclasses.dataclass(frozen=True)
class Eval:
    """Validation during training."""

    every_steps: int
    num_examples: int


@dataclasses.dataclass(frozen=True)
class Machine:
    """What may differ between two runs of the same experiment.

    `init` is the folder of the run whose parameters a run begins with: what they are is science,
    `Config.init`, where they lie is not.
    """

    data_parallel: int
    fsdp_parallel: int
    tensor_parallel: int
    num_microbatches: int
    remat: str
    loader: str
    prefetch: int
    num_workers: int
    cache_dir: str
    compile_cache_dir: str | None
    checkpoint_every_steps: int
    num_checkpoints: int
    log_every_steps: int
    distributed: bool
    init: str | None


@dataclasses.dataclass(frozen=True)
class Config:
    """One run, every field decided; `init` is the digest of the parameters it begins with."""

    system: str
    objective: str
    mask_rate: float
    seed: int
    net: Net
    tokenizer: Tokenizer
    data: Data
    short: ShortPhase
    long: LongPhase
    optim: Optim
    eval: Eval
    machine: Machine
    init: str | None

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
    _check_counts(config)
    _check_net(config.net)
    for name, phase in zip(("short", "long"), config.phases, strict=False):
        _check_phase(name, phase, config)
    _check_rates(config)
    for name, seed in (("seed", config.seed), ("data.order_seed", config.data.order_seed)):
        if seed is not None and not -(2**63) <= seed < 2**63:
            raise ValueError(f"config.{name} = {seed} does not fit into 64 bits")
    check_optim(config.optim)
    _check_choice("data.errors", config.data.errors, ("strict", "replace"))
    _check_choice("machine.loader", config.machine.loader, ("tf", "numpy"))
    clock, total, warmup = durations(config.optim)
    if clock != "epochs":
        check_warmup(clock, total, warmup)


def _check_counts(config: Config) -> None:
    positive = (
        "net.num_heads", "net.width", "net.num_layers", "net.ffn_width", "net.max_len",
        "tokenizer.vocab_size", "eval.every_steps", "eval.num_examples",
        "machine.num_microbatches", "machine.num_checkpoints",
        "machine.log_every_steps", "machine.checkpoint_every_steps", "machine.num_workers",
        "short.max_len", "short.batch_size", "long.max_len", "long.batch_size",
    )  # fmt: skip
    for name, least in (*((name, 1) for name in positive), ("machine.prefetch", 0)):
        group, field = name.split(".")
        value = getattr(getattr(config, group), field)
        if value is not None and value < least:
            raise ValueError(f"config.{name} must be at least {least}, got {value}")


def _check_net(net: Net) -> None:
    if net.width % net.num_heads:
        fits = [a for a in range(1, net.width + 1) if net.width % a == 0 and a <= 64]
        near = sorted(fits, key=lambda a: abs(a - net.num_heads))[:3]
        raise ValueError(
            f"config.net.num_heads = {net.num_heads} does not divide config.net.width ="
            f" {net.width};"
            f" nearest that do: {', '.join(map(str, sorted(near)))}"
        )
    if net.output_embedding not in (None, "untied"):
        raise ValueError(
            f"config.net.output_embedding {net.output_embedding!r}: expected None (tied) or untied"
        )
    _check_choice("net.dtype", net.dtype, ("float32", "bfloat16"))


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


def _check_rates(config: Config) -> None:
    rates = {
        "net.dropout_rate": config.net.dropout_rate, "mask_rate": config.mask_rate,
        "long.example_rate": config.long.example_rate, "data.short_rate": config.data.short_rate,
        "data.valid_rate": config.data.valid_rate,
    }  # fmt: skip
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(f"config.{name} = {rate}: expected a probability in [0, 1)")
    if config.long.epoch_rate is not None and config.long.epoch_rate < 0:
        raise ValueError(f"config.long.epoch_rate = {config.long.epoch_rate}: expected 0 or more")
    if config.mask_rate == 0 and "mlm" in config.objectives:
        raise ValueError("config.mask_rate = 0 leaves the objective 'mlm' nothing to predict")


def _check_choice(name: str, value: str, choices: tuple[str, str]) -> None:
    if value not in choices:
        raise ValueError(f"config.{name} {value!r}: expected {choices[0]} or {choices[1]}")


def check_optim(optim: Any) -> None:
    """Refuses an optimizer that could only diverge."""
    for name in ("learning_rate", "weight_decay"):
        if not 0 <= getattr(optim, name) < math.inf:
            raise ValueError(f"config.optim.{name} = {getattr(optim, name)}: expected 0 or more")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(optim, name) < 1:
            raise ValueError(f"config.optim.{name} = {getattr(optim, name)}: expected [0, 1)")
    if not optim.eps > 0:
        raise ValueError(f"config.optim.eps = {optim.eps}: expected a positive number")
    if optim.clip_norm is not None and not optim.clip_norm > 0:
        raise ValueError(
            f"config.optim.clip_norm = {optim.clip_norm}: expected a positive number, or None: off"
        )


def to_json(config: Config | Mapping[str, Any]) -> str:
    """Serialises every field, for WORKDIR/config.json."""
    values = dataclasses.asdict(config) if dataclasses.is_dataclass(config) else config
    return json.dumps(values, indent=1)


def science(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The fields that may change a result, by dotted name."""
    values = dataclasses.asdict(config) if dataclasses.is_dataclass(config) else config
    flat = flatten(values)  # pyright: ignore[reportArgumentType]
    return {k: v for k, v in flat.items() if not k.startswith("machine.")}


def science_diff(ours: Config | Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Lines "field: theirs -> ours" for each science field in which the two differ.

    One that is not there is None, as in `fill`.
    """
    a, b = science(ours), science(theirs)
    absent = "absent"
    return [
        f"{k}: {b.get(k, absent)!r} -> {a.get(k, absent)!r}"
        for k in sorted(a.keys() | b.keys())
        if a.get(k) != b.get(k)
    ]
