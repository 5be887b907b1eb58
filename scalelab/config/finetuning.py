"""The resolved config of a fine-tuning: frozen dataclasses, filled strictly from a ConfigDict.

`configs/finetune.py` holds the values and says what each is for. Everything below `machine` must
not change a result.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from scalelab.config.fields import fill, flatten
from scalelab.config.pretraining import check_optim
from scalelab.helpers.names import nearest


@dataclasses.dataclass(frozen=True)
class Head:
    """What stands on the net."""

    kind: str
    dropout_rate: float
    pretrained: bool


@dataclasses.dataclass(frozen=True)
class Optim:
    """AdamW and its schedule."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float | None
    schedule: str
    warmup_rate: float
    layer_decay: float | None


@dataclasses.dataclass(frozen=True)
class Machine:
    """What may differ between two runs of the same experiment."""

    cache_dir: str
    compile_cache_dir: str | None
    checkpoint_every_steps: int
    log_every_steps: int
    eval_batch_size: int


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """How a net is adapted to a task, every field decided."""

    recipe: str
    epochs: float
    batch_size: int
    max_len: int
    max_train_examples: int | None
    group_batches: int
    dropout_rate: float
    lm_weight: float
    feature_layers: int | None
    eval_every_epochs: float
    patience: int | None
    order_seed: int | None
    weights_seed: int | None
    head: Head
    optim: Optim
    machine: Machine


def resolve(values: Mapping[str, Any]) -> FinetuneConfig:
    """Turns nested values into a checked config.

    Raises:
      ValueError: an unknown or missing field, a wrong type, or a value that cannot work.
    """
    config = fill(FinetuneConfig, with_head_kind(values, "double"))
    check_optim(config.optim)
    for name in ("epochs", "batch_size", "max_len", "eval_every_epochs", "patience",
        "feature_layers", "max_train_examples",
    ):  # fmt: skip
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"config.{name} must be positive and finite, got {value}")
    for name in ("checkpoint_every_steps", "log_every_steps", "eval_batch_size"):
        if getattr(config.machine, name) < 1:
            raise ValueError(f"config.machine.{name} must be at least 1")
    rates = {
        "dropout_rate": config.dropout_rate,
        "head.dropout_rate": config.head.dropout_rate,
        "optim.warmup_rate": config.optim.warmup_rate,
    }
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(f"config.{name} = {rate}: expected a share in [0, 1)")
    if config.head.kind not in ("double", "single"):
        raise ValueError(f"config.head.kind {config.head.kind!r}: expected 'double' or 'single'")
    if not 0 <= config.lm_weight < math.inf:
        raise ValueError(f"config.lm_weight = {config.lm_weight}: expected 0 or more")
    if config.group_batches < 0:
        raise ValueError(f"config.group_batches = {config.group_batches}: expected 0 or more")
    decay = config.optim.layer_decay
    if decay is not None and not 0 < decay <= 1:
        raise ValueError(f"config.optim.layer_decay = {decay}: expected (0, 1], or None: off")
    if config.lm_weight and config.feature_layers:
        raise ValueError("config.lm_weight trains the net, which config.feature_layers freezes")
    return config


def with_head_kind(values: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Nested values, with this head.kind where they leave it open."""
    head = values.get("head")
    is_open = isinstance(head, Mapping) and "kind" in head and head["kind"] is None
    return {**values, "head": {**head, "kind": kind}} if is_open else values


def settings(config: FinetuneConfig) -> dict[str, Any]:
    """Every field that may move a score, dotted but for the optimizer's."""
    values = dataclasses.asdict(config)
    optim = values.pop("optim")
    return optim | flatten({k: v for k, v in values.items() if k not in ("recipe", "machine")})


def override(values: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested values with dotted fields replaced: {"optim.eps": 1e-8}.

    Raises:
      ValueError: no such field.
    """
    flat = flatten(values)
    copy = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    for field, value in settings.items():
        if field not in flat:
            raise ValueError(f"unknown config field {field!r}: {nearest(field, flat)}")
        *groups, name = field.split(".")
        (copy[groups[0]] if groups else copy)[name] = value
    return copy
