"""The initial weights of a fine-tuning: a pre-training run, an imported classifier, or none."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

from flax.typing import ArrayPytree

from scalelab.config.finetuning import FinetuneConfig
from scalelab.finetuning import imported, kinds
from scalelab.finetuning.imported import ImportedClassifier
from scalelab.records import run_files
from scalelab.records.run_files import TaskResult
from scalelab.training import pretrained
from scalelab.training.pretrained import Pretrained, load_trained, tree_digest


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The initial weights of a fine-tuning, and the model that they belong to."""

    opened: Pretrained  # gives the model, its system and its tokenizer
    label: str  # the name of the initial weights in tables: a path, or "none"
    bodies: Callable[[int], ArrayPytree] | None  # seed -> the model's parameters; None: scratch
    digest: Callable[[int], str]  # seed -> hash of these parameters; "none" from scratch
    mnli_first: bool = False  # whether the weights were fine-tuned on MNLI before
    classifier: ImportedClassifier | None = None  # gives model and tokenizer, if it is one
    remarks: tuple[str, ...] = ()  # on the data of an earlier fine-tuning, for tables


def open_start(init: str, like: str | None = None, mnli: str | None = None) -> WarmStart:
    """Opens the initial weights.

    Args:
      init: run folder of a pre-training, of an imported classifier or of a fine-tuning as text to
        text; or "none".
      like: with "none", the run folder that gives model and tokenizer.
      mnli: folder of MNLI runs of the same model; seed k starts from its seed k.

    Raises:
      ValueError: a folder is none of these.
    """
    if (init == "none") != (like is not None):
        raise ValueError(
            "--init=none and --like=RUN go together: RUN is the pre-training run that gives shape,"
            " system and tokenizer of the model with random weights"
        )
    opened, classifier = _open(init if like is None else like)
    if mnli is not None and (like is not None or classifier is not None):
        raise ValueError("--mnli gives weights; leave out --init=none, or the classifier of --init")
    if like is not None:
        return WarmStart(opened, "none", None, lambda seed: "none", classifier=classifier)
    if not opened.finished:
        print(f"note: the run in {init} is not finished; its checkpoint of step {opened.step}")
    whole = {"body": opened.params, "head": classifier.head} if classifier else opened.params
    digest = tree_digest(whole)
    if mnli is not None:
        return _after_mnli(opened, init, pathlib.Path(mnli), digest)
    before = run_files.read_result(pathlib.Path(init)) if classifier is None else None
    tasks = isinstance(before, TaskResult) and (
        (before.settings or {}).get("sharing_tasks") or before.task
    )
    remarks = (f"Before, fine-tuned as text on {tasks}",) if tasks else ()
    return WarmStart(
        opened, init, lambda seed: opened.params, lambda seed: digest, False, classifier, remarks
    )


def _after_mnli(opened: Pretrained, init: str, folder: pathlib.Path, digest: str) -> WarmStart:
    """Takes the weights of MNLI runs that started from `init`, whose digest is given."""
    result = run_files.read_result(folder / "seed0")
    if not isinstance(result, TaskResult) or (result.task, result.init_digest) != ("mnli", digest):
        raise ValueError(f"{folder} holds no runs on MNLI that started from {init} and ended")

    def body(seed: int) -> ArrayPytree:
        return load_trained(folder / f"seed{seed}")["body"]

    digests = functools.cache(lambda seed: tree_digest(body(seed)))
    remarks = tuple(f"Before, fine-tuned on {remark}" for remark in result.remarks)
    return WarmStart(opened, init, body, digests, mnli_first=True, remarks=remarks)


def check_fits(opened: Pretrained, config: FinetuneConfig, title: str, num_examples: int) -> None:
    """Raises ValueError if a config does not fit the model or the number of training examples.

    Args:
      opened: the model.
      config: config of the fine-tuning.
      title: the task's title, for the message.
      num_examples: training examples of the task.
    """
    num_examples = min(num_examples, config.max_train_examples or num_examples)
    net, system, words = opened.config.model, opened.system, config.head.kind == kinds.WORDS
    if words and opened.predicts != "next":
        raise ValueError(
            f"{title}: --as=text generates label words, and this {opened.config.system} does not"
            " predict the next token: leave --as out, or take a left-to-right model or an"
            " encoder-decoder"
        )
    if hasattr(system, "count"):
        raise ValueError(
            f"{title}: the parameters of {opened.config.system} are counts, which training does not"
            " change: choose a model that is trained"
        )
    if system.HAS_SOURCE and not words and system.ADAPTATION.source is None:
        raise ValueError(
            f"{title}: {opened.config.system} does not declare where the text of a task goes"
            " (Adaptation.source: both or source): declare it, or use --as=text"
        )
    for field, value, apart in (
        ("feature_layers", config.feature_layers, words or system.HAS_SOURCE),
        ("lm_weight", config.lm_weight, words or system.HAS_SOURCE),
        ("head.lstm_width", config.head.lstm_width, words),
    ):
        if value and apart:
            how = "--as=text" if words else "a model that reads a source"
            off = 0 if field == "lm_weight" else None
            raise ValueError(
                f"{title}: config.{field} = {value} does not go with {how}: set"
                f" --config.{field}={off}"
            )
    for field, value, most, what in (
        ("batch_size", config.batch_size, num_examples, "training examples"),
        ("max_len", config.max_len, net.max_len, "tokens that the model reads (model.max_len)"),
        ("feature_layers", config.feature_layers or 0, net.num_layers + 1, "layers of states"),
    ):
        if value > most:
            raise ValueError(
                f"{title}: config.{field} = {value} exceeds the {most} {what}: set"
                f" --config.{field}={most} or less"
            )


@functools.lru_cache(maxsize=2)  # many tasks start from the same run
def _open(init: str) -> tuple[Pretrained, ImportedClassifier | None]:
    """Opens a pre-training run, an imported classifier, or a fine-tuning without a head."""
    run = run_files.read_run(path := pathlib.Path(init), metrics=False)
    # A model that generates has no head, so that it is opened as a pre-trained one.
    if run.task == imported.TASK or run.config.get("kind") in kinds.GENERATED:
        opened = imported.load(run, load_trained(path))
    else:
        opened = pretrained.load(path), None
    opened[0].check_alone(source=True)  # `check_fits` asks where a task's text goes
    return opened
