"""The config of a fine-tuning: one frozen dataclass a group, the comment beside the field.

The recipes in scalelab/tasks/recipes.py change some defaults. `configs/finetune.py` makes the
ConfigDict. Every field may change a score, except those of `machine`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from scalelab.config import fields
from scalelab.config.fields import (
    OWNERS,
    Count,
    Epochs,
    NotNegative,
    Positive,
    Probability,
    Seed,
    between,
    choice,
    fill,
    flatten,
)
from scalelab.config.pretraining import AdamW, Schedule
from scalelab.helpers.names import nearest


@dataclasses.dataclass(frozen=True)
class Head:
    """The classifier on the model."""

    # "double": H -> H, tanh, H -> classes; or "single"; "decomposable": attention between tokens of
    # two texts (Parikh et al. 2016); "words", set by --as=text: none, the model generates. None:
    # the kind of an imported classifier, else double.
    kind: Annotated[str, choice("double", "single", "decomposable", "words")] | None = None
    dropout_rate: Probability = 0.1  # before each layer of the head
    pretrained: bool = True  # the first layer starts from the pooler that NSP has trained
    # Width of each direction of a new BiLSTM below the head (Devlin et al. 2019, 5.1); None: none.
    lstm_width: Annotated[int, between(1, 2**16)] | None = None


@dataclasses.dataclass(frozen=True)
class Optim(AdamW):
    """AdamW and its schedule."""

    learning_rate: NotNegative = 2e-5  # at the end of the warm-up
    # After the warm-up: linear or cosine, to zero at the end; or constant.
    schedule: Schedule = "linear"
    warmup_rate: Probability = 0.0  # share of all steps
    # Factor of the rate from layer to layer; None: off.
    layer_decay: Annotated[float, ("a factor in (0, 1]", lambda x: 0 < x <= 1)] | None = None


@dataclasses.dataclass(frozen=True)
class Machine:
    """What may differ between two runs of the same experiment."""

    cache_dir: str = "~/.cache/scalelab"  # tokenized tasks
    compile_cache_dir: str | None = "~/.cache/scalelab/xla"  # compiled programs; None: not kept
    checkpoint_every_steps: Count = 1000  # training steps between two checkpoints
    log_every_steps: Count = 50  # training steps between two lines of metrics
    # None: metrics.jsonl alone. Install wandb or trackio yourself; WANDB_MODE=offline works.
    tracker: Annotated[str, choice("tensorboard", "wandb", "trackio")] | None = "tensorboard"
    eval_batch_size: Annotated[int, between(1, 65_536)] = 64  # examples
    # most steps of one program, at most 1024; None: about a second
    steps_per_dispatch: Annotated[int, between(1, 1024)] | None = None
    # The batch is split over all devices; this many of them also split the model.
    fsdp_parallel: Count = 1
    tensor_parallel: Count = 1  # devices that split heads, FFN and vocabulary


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """How a model is adapted to a task, every field decided."""

    recipe: str = "thesis"  # only a label: --recipe=NAME changes the recipe
    epochs: Epochs = 3.0  # passes over the training examples
    batch_size: Count = 16  # examples
    max_len: Count = 128  # tokens of a row at most; longer texts are cut, the longest first
    max_train_examples: Count | None = None  # the first so many; None: all
    # So many batches are drawn, sorted by length, and shuffled; 0: unsorted.
    group_batches: Annotated[int, between(0, 65_536)] = 50
    dropout_rate: Probability = 0.1  # dropout of the model, as in pre-training
    lm_weight: NotNegative = 0.0  # lambda of the auxiliary language-model loss; causal systems only
    # Features of so many top layers, model frozen; L + 1: the embeddings too; None: off.
    feature_layers: Count | None = None
    # "weighted": these layers' sum with learned weights (Peters et al. 2018); None: side by side.
    feature_mix: Annotated[str, choice("weighted")] | None = None
    # "adapters": adapters behind each feed-forward network, the norms and the head are trained;
    # "gradual_unfreezing": the last layer first, the embeddings last; "new_encoder": the new
    # encoder, and positions and first attention kernels of the old one. None: all parameters.
    method: Annotated[str, choice("adapters", "gradual_unfreezing", "new_encoder")] | None = None
    adapter_width: Count | None = None  # width of each adapter; None: no adapters
    # Number of layers of a new encoder that replaces the token embeddings of the source (Lewis et
    # al. 2020, BART, 3.4); None: there is no new encoder.
    new_encoder_layers: Annotated[int, between(1, 1000)] | None = None
    # What several tasks that are trained at once share: "hard", one body, with a head a task. None:
    # each task is trained alone.
    sharing: Annotated[str, choice("hard")] | None = None
    sharing_tasks: str | None = None  # their names, with commas; eval.glue sets it
    # The rate at which batches are drawn from a task of e examples: "proportional" to
    # min(e, mixing_limit); "temperature", to its power 1 / mixing_temperature; "equal". None: each
    # epoch has each task's batches once.
    mixing: Annotated[str, choice("proportional", "temperature", "equal")] | None = None
    mixing_limit: Count | None = None  # examples of a task that count at most; None: all
    mixing_temperature: Positive | None = None
    # Beams that search for an answer where the model writes a text; None: greedy.
    num_beams: Annotated[int, between(2, 1024)] | None = None
    # Power of the length that divides the log probability of a beam; None: 1.
    length_penalty: float | None = None
    eval_every_epochs: Positive = 1.0  # passes between two evaluations
    patience: Count | None = None  # evaluations without a better score; None: off
    # One seed for all runs of the examples' order, or of the new head and dropout; None: each run's
    # own. With one of them fixed, runs differ only in the other.
    order_seed: int | None = None
    weights_seed: Seed | None = None  # seed of the new head and dropout
    head: Head = Head()
    optim: Optim = Optim()
    machine: Machine = Machine()


def resolve(values: Mapping[str, Any]) -> FinetuneConfig:
    """Turns nested values into a checked config.

    Raises:
      ValueError: an unknown or missing field, a wrong type, or a value that cannot work.
    """
    config = fill(FinetuneConfig, with_head_kind(values, "double"))
    if config.lm_weight and config.feature_layers:
        raise ValueError("config.lm_weight trains the model, which config.feature_layers freezes")
    if config.feature_mix and not config.feature_layers:
        raise ValueError("config.feature_mix needs config.feature_layers, the number of layers")
    if config.head.kind == "decomposable" and (config.feature_mix or config.head.lstm_width):
        raise ValueError(
            "config.head.kind = 'decomposable' does not go with config.feature_mix and"
            " config.head.lstm_width: set both to None"
        )
    _check_method(config)
    if config.length_penalty is not None and not config.num_beams:
        raise ValueError("config.length_penalty ranks beams: set config.num_beams too")
    for field in ("feature_layers", "patience", "method") if config.sharing else ():
        if getattr(config, field):
            raise ValueError(f"config.sharing does not go with config.{field}: set it to None")
    _check_mixing(config)
    return config


def _check_method(config: FinetuneConfig) -> None:
    """Raises ValueError if fields contradict each other that say which parameters are trained."""
    if (config.method == "adapters") != (config.adapter_width is not None):
        raise ValueError(
            f"config.method = {config.method!r} with config.adapter_width ="
            f" {config.adapter_width}: 'adapters' needs a width, such as 32, and nothing else has"
            " one"
        )
    if config.method == "new_encoder" and not config.new_encoder_layers:
        raise ValueError("config.method = 'new_encoder' needs config.new_encoder_layers, such as 2")
    if config.new_encoder_layers and config.method not in (None, "new_encoder"):
        raise ValueError(
            f"config.new_encoder_layers does not go with config.method = {config.method!r}: set"
            " the method to None or 'new_encoder'"
        )
    if config.new_encoder_layers and config.optim.layer_decay:
        raise ValueError(
            "config.new_encoder_layers does not go with config.optim.layer_decay: set one to None"
        )
    if config.method and config.feature_layers:
        raise ValueError("config.method trains the model, which config.feature_layers freezes")


def _check_mixing(config: FinetuneConfig) -> None:
    """Raises ValueError if the fields of a mixture contradict each other."""
    mixing, limit = config.mixing, config.mixing_limit
    if mixing and (config.sharing is None or "," not in (config.sharing_tasks or "")):
        raise ValueError(
            f"config.mixing = {mixing!r} needs config.sharing = 'hard' and two or more tasks: use"
            " eval.glue --tasks=NAME,NAME"
        )
    if (mixing == "temperature") != (config.mixing_temperature is not None):
        raise ValueError(
            f"config.mixing_temperature = {config.mixing_temperature} with config.mixing ="
            f" {mixing!r}: 'temperature' needs one, such as 2, and nothing else has one"
        )
    if limit and mixing in (None, "equal"):
        raise ValueError(
            f"config.mixing_limit = {limit} has no use with config.mixing = {mixing!r}: set it to"
            " None"
        )


def with_head_kind(values: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns a copy of nested values with this head.kind where they have None."""
    head = values.get("head")
    is_open = isinstance(head, Mapping) and "kind" in head and head["kind"] is None
    return {**values, "head": {**head, "kind": kind}} if is_open else values


def settings(config: FinetuneConfig) -> dict[str, Any]:
    """Returns every field that may move a score; the optimizer's without their prefix."""
    return {k.removeprefix("optim."): v for k, v in fields.science(config).items() if k != "recipe"}


def override(values: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested values with some fields replaced, such as {"optim.eps": 1e-8}.

    Options, such as "system_options.X", may be new; `pretraining.resolve` checks them.

    Raises:
      ValueError: no such field.
    """
    flat = flatten(values)
    copy = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    for field, value in settings.items():
        *groups, name = field.split(".")
        if field not in flat and not (
            len(groups) == 1 and groups[0] in OWNERS.keys() & copy.keys()
        ):
            raise ValueError(f"unknown config field {field!r}: {nearest(field, flat)}")
        (copy[groups[0]] if groups else copy)[name] = value
    return copy
