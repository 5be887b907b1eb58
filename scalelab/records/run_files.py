"""The typed records of a run folder: what the loops write and the lab reads (DESIGN section 5).

`read_run(folder)` reads a folder's files once. A file that does not parse, has fields of another
type or was written by a later version of this format raises `Unreadable`, which names the file and
the reason. A record is a value: no reader opens the files again.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from scalelab.config.fields import Departure
from scalelab.config.pretraining import Shape, Tokenizer, with_moved_fields
from scalelab.helpers.files import Unreadable, reading, write_json
from scalelab.helpers.names import suggest_folder
from scalelab.records import json_files

FORMAT = 1  # version of result.json; the oldest files have none
COMPLETED, FAILED = "completed", "failed"
VALIDATION = ("eval/loss", "eval/max_len", "tokens", "flops", "seconds")
UNKNOWN = "not recorded"

Line = Mapping[str, float]  # a line of metrics.jsonl


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The data of one phase: longest sequence, number of examples, and tokens in an epoch."""

    max_len: int
    examples: int
    tokens: int
    padding_share: float | None = None  # share of padding in the token arrays; None: an older run
    valid_examples: int | None = None  # examples that a validation reads; None: an older run


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What a split of a corpus holds."""

    documents: int
    tokens: int
    unknown: int | None = None  # tokens that stand for unknown text; None: not counted


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """The part of result.json that every finished run has."""

    system: str
    shape: Shape
    n_model: int  # the size N
    seed: int
    steps: int = 0  # optimizer steps
    tokens: int = 0  # real (non-padding) input tokens
    flops: float = 0.0  # FLOPs of training
    seconds: float = 0.0  # training alone
    status: str = COMPLETED  # or FAILED
    params: int | None = None  # number of parameters
    init: str | None = None  # the first weights: a folder, a name, or "none"; None if random
    init_digest: str | None = None
    peak_memory_bytes: int | None = None  # the largest memory of the process
    imported: dict[str, Any] | None = None  # where it was imported from; None: trained here
    remarks: tuple[str, ...] = ()  # in words: on its data, or what it has not learned
    format: int = FORMAT


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunResult(Result):
    """result.json of a pre-training."""

    task: str | None = None  # always None
    # Maximum length -> the last validation at it: "loss", "step", "best_loss", ...
    eval: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    data_hash: str | None = None  # digest of the corpus
    unigram_nats: float | None = None  # cross-entropy of the unigram model in nats a token
    # Unigram entropies of the arrays that are predicted in place of the text, by
    # `baselines.unigram_name`.
    unigrams: dict[str, float] = dataclasses.field(default_factory=dict)
    corpus: Corpus | None = None  # the training split
    validation: Corpus | None = None  # the validation split; None: an older run
    phases: tuple[PhaseData, ...] = ()
    departures: tuple[Departure, ...] = ()  # the declared ones that were active
    initialised: tuple[str, ...] = ()  # parameters that `init` lacked, which were drawn afresh
    setup_secs: float | None = None  # from the start to the first step
    compile_secs: float | None = None
    eval_secs: float | None = None
    save_secs: float | None = None

    @property
    def loss(self) -> float | None:
        """The last validation loss at the longest length."""
        return self._last("loss")

    @property
    def bits_per_byte(self) -> float | None:
        """The same in bits per byte of text, see `metrics.bits_per_byte`."""
        return self._last("bits_per_byte")

    def _last(self, metric: str) -> float | None:
        longest = max(self.eval, key=int, default=None)
        return None if longest is None else self.eval[longest].get(metric)

    @property
    def passes(self) -> float | None:
        """How often the run read all its examples; None if it is not recorded."""
        tokens = sum(phase.tokens for phase in self.phases)
        return self.tokens / tokens if tokens else None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TaskResult(Result):
    """result.json of a fine-tuning."""

    task: str
    recipe: str | None = None  # its label
    pretrain_seed: int | None = None
    mnli_first: bool = False  # whether it began with weights fine-tuned on MNLI
    # Dev split -> metric -> score; None if it is undefined or not finite.
    eval: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)
    # Dev split -> metric -> reason why it is undefined, found in the gold labels.
    undefined: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    best: dict[str, Any] | None = None  # {"step", "dev"} of the best validation
    early_stopping: bool = False  # whether the best step was kept
    stopped: int | None = None  # step at which early stopping ended it
    train_loss: float | None = None  # mean at the end
    degenerate: str | None = None  # why the run counts as degenerate; None if it does not
    truncated: dict[str, int] = dataclasses.field(default_factory=dict)  # by split
    # Dev split -> generated answers that were no label; {}: none are generated.
    invalid: dict[str, int] = dataclasses.field(default_factory=dict)
    data: dict[str, str | None] | None = None  # split -> digest
    settings: dict[str, Any] | None = None  # field of the recipe -> value
    chosen: dict[str, Any] | None = None  # field -> value that a grid chose on dev
    tokenizer_digest: str | None = None  # digest of the files in tokenizer/; None: not recorded


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Environment:
    """environment.json: where and with what a run was made, and its earlier starts."""

    started: str | None = None
    command: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    numerics: int | None = None
    # Digest of the files in tokenizer/; None: not recorded, or in result.json (fine-tunings).
    tokenizer_digest: str | None = None
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    cpus: int | None = None
    devices: tuple[str, ...] = ()
    earlier_starts: "tuple[Environment, ...]" = ()

    @property
    def numerics_versions(self) -> str:
        """Numerics versions of all starts in words: "1", "1 and 2", "1 and not recorded"."""
        starts = (*self.earlier_starts, self)
        versions = (UNKNOWN if s.numerics is None else str(s.numerics) for s in starts)
        return " and ".join(dict.fromkeys(versions))

    @property
    def machine(self) -> str:
        """Cores and devices: "2 CPUs, cpu:cpu"; "unknown" if it is not recorded."""
        return f"{self.cpus} CPUs, {', '.join(self.devices)}" if self.devices else "unknown"


@dataclasses.dataclass(frozen=True, eq=False)
class RunRecord:
    """The content of a run's files."""

    folder: pathlib.Path
    config: dict[str, Any]  # the content of config.json, fields in their places of today
    environment: Environment
    result: RunResult | TaskResult | None  # None until the run has ended
    lines: tuple[Line, ...] = ()  # lines of metrics.jsonl; () if they were not asked for
    manifest_hash: str | None = None  # digest of the corpus in the tokenizer's manifest

    @property
    def task(self) -> str | None:
        """The task of a fine-tuning; None for a pre-training."""
        return self.config.get("task")

    @property
    def shape(self) -> Shape:
        """The shape of the model."""
        net = self.config["model"]
        return Shape(net["num_heads"], net["width"], net["num_layers"])

    @property
    def name(self) -> str:
        """The name in messages: "bert 2x128x2 seed 0", "bert 2x128x2 on cola seed 0"."""
        task = f" on {self.task}" if self.task else ""
        return f"{self.config['system']} {self.shape}{task} seed {self.config.get('seed')}"

    @property
    def data_hash(self) -> str | None:
        """Digest of a pre-training's corpus; None if it is not known yet."""
        result = self.result
        return (result.data_hash if isinstance(result, RunResult) else None) or self.manifest_hash


def read_run(folder: pathlib.Path, *, metrics: bool = True) -> RunRecord:
    """Reads the files of a run, finished or not; metrics.jsonl only if `metrics`.

    Raises:
      Unreadable: there is no run, or one of its files cannot be used.
    """
    config = read_config(folder)
    environment = json_files.read_object(path := folder / "environment.json") or {}
    return RunRecord(
        folder,
        config,
        json_files.fill(Environment, environment, path),
        read_result(folder),
        read_metrics(folder) if metrics else (),
        _read_manifest_hash(folder) if config.get("task") is None else None,
    )


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the content of config.json, which names a system, a seed and the sizes of a model.

    Raises:
      Unreadable: it is missing, damaged, or no config of a run.
    """
    path = folder / "config.json"
    config = json_files.read_object(path)
    if config is None:
        raise Unreadable(
            path,
            "is missing: no run folder; expected the --workdir of a training (to make one from a"
            " model of the hub: python -m scalelab.interop.hf import NAME --workdir=DIR)"
            + suggest_folder(folder),
        )
    if "system" not in config and {"model_type", "architectures"} & config.keys():
        raise Unreadable(
            path,
            "is of a folder in Hugging Face layout, no run folder; import it first: python -m"
            f" scalelab.interop.hf import {folder} --workdir=runs/{folder.absolute().name}",
        )
    config = with_moved_fields(config)
    json_files.fill(RunConfig, config, path)
    return config


@dataclasses.dataclass(frozen=True)
class NetSizes:
    """The fields of a model's config that every reader needs."""

    num_heads: int
    width: int
    num_layers: int


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The fields of config.json that every reader needs."""

    system: str
    seed: int
    model: NetSizes
    task: str | None = None
    data: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    tokenizer: Tokenizer | None = None
    data: dict[str, Any] | None = None
    optim: dict[str, Any] | None = None


def read_result(folder: pathlib.Path) -> RunResult | TaskResult | None:
    """Returns the content of result.json; None until the run has ended.

    Raises:
      Unreadable: it is damaged, or was written by a later version.
    """
    path = folder / "result.json"
    values = json_files.read_object(path)
    if values is None:
        return None
    result = json_files.fill(RunResult if values.get("task") is None else TaskResult, values, path)
    if result.format > FORMAT:
        raise Unreadable(path, f"has format {result.format}; this version reads up to {FORMAT}")
    if result.status not in (COMPLETED, FAILED):
        raise Unreadable(path, f"has status {result.status!r}")
    if isinstance(result, RunResult):
        wrong = [length for length, x in result.eval.items()
                 if not length.isdecimal() or x.get("loss") is None]  # fmt: skip
        if wrong or not (result.eval or result.imported):
            raise Unreadable(path, f"has no validation loss {', '.join(wrong)}".rstrip())
    return result


def write_result(folder: pathlib.Path, result: RunResult | TaskResult) -> None:
    """Writes result.json atomically."""
    write_json(folder / "result.json", json_files.dump(result))


def read_metrics(folder: pathlib.Path) -> tuple[Line, ...]:
    """Returns the lines of metrics.jsonl, without a last line that is still being written.

    Raises:
      Unreadable: another line is damaged.
    """
    path, found = folder / "metrics.jsonl", []
    lines = (json_files.read_text(path) or "").split("\n")
    for number, text in enumerate(lines, 1):
        try:
            with reading(path, f" (line {number})"):
                found += [json_files.parse_numbers(text)] if text else []
        except Unreadable:
            if number < len(lines):
                raise
    return tuple(found)


def validations(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines of validations, each with a loss, a length and all clocks."""
    return [line for line in lines if all(name in line for name in VALIDATION)]


def _read_manifest_hash(folder: pathlib.Path) -> str | None:
    """Returns the digest of the corpus in the tokenizer's manifest; None if there is none."""
    try:
        value: Any = json_files.read_object(folder / "tokenizer/manifest.json")
    except Unreadable:
        return None
    for key in ("key", "text", "corpus"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None
