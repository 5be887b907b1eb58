"""Where a fine-tuning begins: at a pre-training run, an imported classifier, or random weights."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

from scalelab.config.finetuning import FinetuneConfig
from scalelab.finetuning import imported
from scalelab.finetuning.imported import ImportedClassifier
from scalelab.runs import pretrained
from scalelab.runs.pretrained import Pretrained, digest_of, load_trained


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a fine-tuning begins.

    Attributes:
      opened: the pre-training run that gives the net, its system and its tokenizer.
      label: what tables call the initial weights: a path, or "none".
      bodies: for a seed the net's parameters; None: from scratch.
      digest: for a seed eight hexadecimal digits of these parameters; "none" from scratch.
      mnli_first: whether the weights were fine-tuned on MNLI before.
      classifier: what gives net and tokenizer, if that is an imported classifier.
      remarks: what a table must say of the data that the weights were fine-tuned on before.
    """

    opened: Pretrained
    label: str
    bodies: Callable[[int], Any] | None
    digest: Callable[[int], str]
    mnli_first: bool = False
    classifier: ImportedClassifier | None = None
    remarks: tuple[str, ...] = ()


def open_start(init: str, like: str | None = None, mnli: str | None = None) -> Start:
    """Opens what a fine-tuning starts from.

    Args:
      init: run folder of a pre-training or of an imported classifier, or "none".
      like: with "none", the run folder whose net and tokenizer are taken.
      mnli: folder of MNLI runs of the same net, whose weights are taken, seed by seed.

    Raises:
      ValueError: a folder is none of these.
    """
    if init == "none":
        if like is None:
            raise ValueError(
                "--init=none starts from random weights, but of which net? --like=RUN takes the"
                " shape, system and tokenizer of a pre-training run"
            )
        if mnli is not None:
            raise ValueError("--mnli gives weights, --init=none asks for none: leave one out")
        opened, classifier = _open(like)
        return Start(opened, "none", None, lambda seed: "none", classifier=classifier)
    if like is not None:
        raise ValueError("--like is for --init=none; leave it out")
    opened, classifier = _open(init)
    if not opened.finished:
        print(f"note: the run in {init} is not finished; what it had learnt by step {opened.step}")
    if classifier is not None:
        if mnli is not None:
            raise ValueError(f"--mnli gives weights, and so does the classifier {init}: choose one")
        digest = digest_of({"body": opened.params, "head": classifier.head})
        return Start(
            opened, init, lambda seed: opened.params, lambda seed: digest, classifier=classifier
        )
    digest = digest_of(opened.params)
    if mnli is None:
        return Start(opened, init, lambda seed: opened.params, lambda seed: digest)
    folder = pathlib.Path(mnli)
    made = folder.read_json(folder / "seed0" / "config.json") or {}
    if made.get("task") != "mnli" or made.get("init") != digest:
        raise ValueError(f"{folder} holds no runs on MNLI that started from {init}")

    def body(seed: int) -> Any:
        return load_trained(folder / f"seed{seed}")["body"]

    digests = functools.cache(lambda seed: digest_of(body(seed)))
    result = folder.read_json(folder / "seed0" / "result.json") or {}
    remarks = tuple(f"Before, fine-tuned on {said}" for said in result.get("remarks", []))
    return Start(opened, init, body, digests, mnli_first=True, remarks=remarks)


def check_fits(opened: Pretrained, config: FinetuneConfig, title: str, num_examples: int) -> None:
    """Refuses a recipe that a net, or a task of so many training examples, cannot follow.

    Raises:
      ValueError: with the task's title, the field, and what to set it to.
    """
    system = opened.config.system
    num_examples = min(num_examples, config.max_train_examples or num_examples)
    if config.batch_size > num_examples:
        raise ValueError(
            f"{title}: {num_examples} training examples, fewer than one batch of"
            f" {config.batch_size}: set --config.batch_size={num_examples} or less"
        )
    if config.max_len > opened.config.net.max_len:
        raise ValueError(
            f"{title}: config.max_len = {config.max_len} exceeds the positions of the net: set"
            f" --config.max_len={opened.config.net.max_len} or less"
        )
    if config.lm_weight and "clm" not in opened.system.OBJECTIVES:
        raise ValueError(
            f"{title}: config.lm_weight = {config.lm_weight} needs a causal language model, which"
            f" {system} is not; set --config.lm_weight=0"
        )
    layers, there = config.feature_layers, opened.config.net.num_layers
    if layers and layers > there:
        raise ValueError(
            f"{title}: config.feature_layers = {layers}: the net has {there} layers;"
            f" set --config.feature_layers={there} or less"
        )


@functools.lru_cache(maxsize=2)  # many tasks start from the same run
def _open(init: str) -> tuple[Pretrained, ImportedClassifier | None]:
    """A pre-training, or an imported classifier."""
    path = pathlib.Path(init)
    return imported.load(path) if imported.is_classifier(path) else (pretrained.load(path), None)
