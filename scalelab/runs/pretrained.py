"""Opens a pre-training run for fine-tuning, decoding, evaluation and warm starts."""

import dataclasses
import functools
import pathlib
import zlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from scalelab import objectives as objectives_lib
from scalelab import systems
from scalelab.config.pretraining import Config, resolve
from scalelab.data.tokenizers import Tokenizer
from scalelab.objectives import Objective
from scalelab.runs import run_folder
from scalelab.runs.checkpoint import Checkpoints
from scalelab.systems import System


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A pre-training run, with the parameters of its newest checkpoint.

    Attributes:
      path: its folder.
      config: its resolved config.
      system: the module of its family.
      tokenizer: its tokenizer.
      params: its parameters after `step`, on the first device, layers stacked on axis 0.
      step: steps taken.
      finished: whether it reached the end of its budget.
    """

    path: pathlib.Path
    config: Config
    system: System
    tokenizer: Tokenizer
    params: Any
    step: int
    finished: bool

    @functools.cached_property
    def net(self) -> nn.Module:
        """Its net, unbound."""
        config = self.config
        return systems.make_net(
            self.system,
            config.net,
            vocab_size=config.tokenizer.vocab_size,
            remat=config.machine.remat,
        )

    @functools.cached_property
    def objectives(self) -> tuple[Objective, ...]:
        """Its objectives."""
        config = self.config
        return objectives_lib.make(
            config.objectives,
            vocab_size=config.tokenizer.vocab_size,
            special_ids=self.tokenizer.special_ids,
            mask_rate=config.mask_rate,
        )

    @property
    def tokenizer_dir(self) -> pathlib.Path:
        """Its tokenizer's files, in Hugging Face layout."""
        return self.path / "tokenizer"


def load(path: str | pathlib.Path) -> Pretrained:
    """Opens the run folder of a pre-training.

    Raises:
      ValueError: the folder holds none, or a part of one is missing; the message says which.
    """
    path = pathlib.Path(path)
    config = _config_of(path)
    if not (path / "tokenizer" / "tokenizer.json").is_file():
        raise ValueError(f"the run in {path} has no tokenizer: {path}/tokenizer is missing")
    if not (path / "checkpoints").is_dir():
        raise ValueError(f"the run in {path} has no checkpoints: {path}/checkpoints is missing")
    system = systems.load(config.system)
    tokenizer = Tokenizer.load(path / "tokenizer")
    expected = _expected_params(path, config, system, tokenizer)
    saved = _saved(path / "checkpoints")
    if saved is None:
        raise ValueError(f"the run in {path} has saved no checkpoint yet")
    if not _same_shapes(expected, saved["params"]):
        raise ValueError(
            f"the checkpoint in {path} is not of the net that its config.json describes: names or"
            " shapes of parameters differ"
        )
    finished = run_folder.read_json(path / "result.json") is not None
    return Pretrained(
        path, config, system, tokenizer, saved["params"], int(saved["step"]), finished
    )


def _config_of(path: pathlib.Path) -> Config:
    """Returns the config of a pre-training run.

    Raises:
      ValueError: the folder holds none.
    """
    if not path.is_dir():
        raise ValueError(
            f"no run folder {str(path)!r}: expected what a training's --workdir left; a model of"
            " the hub becomes one by python -m scalelab.interop.hf import NAME --workdir=DIR"
        )
    values = run_folder.read_json(path / "config.json")
    if values is None:
        inside = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise ValueError(f"{path} is no run folder: it has no config.json (it holds {inside})")
    run_folder.check_ours(path, values)
    if values.get("task") == "imported":
        raise ValueError(
            f"{path} is a classifier that was imported, which has no pre-training's head: expected"
            " a pre-training run, or an import of one (what a classifier is for: python -m"
            f" scalelab.eval.TASK --init={path}, which trains it on, or --eval_only, to score it)"
        )
    if "task" in values:
        raise ValueError(
            f"{path} is a run fine-tuned on {values['task']!r}; expected a pre-training run, such"
            f" as the one it started from"
        )
    return resolve(values)


def _expected_params(
    path: pathlib.Path, config: Config, system: System, tokenizer: Tokenizer
) -> Any:
    """Returns shapes and types of the parameters that a run's config describes.

    Raises:
      ValueError: the tokenizer is another net's.
    """
    try:
        made = objectives_lib.make(
            config.objectives,
            vocab_size=config.tokenizer.vocab_size,
            special_ids=tokenizer.special_ids,
            mask_rate=config.mask_rate,
        )
    except ValueError as error:
        raise ValueError(f"{path}/tokenizer is not the tokenizer of this run: {error}") from None
    if tokenizer.vocab_size > config.tokenizer.vocab_size:
        raise ValueError(
            f"{path}/tokenizer is not the tokenizer of this run: tokenizer.json has"
            f" {tokenizer.vocab_size} pieces, the net {config.tokenizer.vocab_size}"
        )
    net = systems.make_net(system, config.net, vocab_size=config.tokenizer.vocab_size)
    return objectives_lib.abstract_params(net, made, max_len=config.short.max_len)


def _saved(directory: pathlib.Path) -> Any:
    """Returns the newest sound checkpoint as plain dicts; None if there is none.

    A checkpoint of an import has no optimizer state.
    """
    checkpoints = Checkpoints(directory, num_last=None)
    restored = checkpoints.restore_as_saved()
    checkpoints.close()
    return None if restored is None else restored[0]


def load_trained(folder: pathlib.Path) -> Any:
    """Returns the parameters {"body", "head"} of a finished fine-tuning, on the first device.

    Raises:
      ValueError: the folder keeps none.
    """
    directory = folder / "checkpoints"
    if not directory.is_dir():
        raise ValueError(f"{folder} holds no finished fine-tuning; train it first")
    saved = _saved(directory)
    if saved is None:
        raise ValueError(f"{directory} holds no parameters; train again in a new --workdir")
    return saved["params"]


def digest_of(params: Any) -> str:
    """Returns a CRC-32 of all parameters, as eight hexadecimal digits."""
    crc = 0
    for leaf in jax.tree.leaves(params):
        crc = zlib.crc32(np.ascontiguousarray(leaf), crc)
    return f"{crc:08x}"


def _same_shapes(expected: Any, found: Any) -> bool:
    """Returns whether two trees of parameters have the same names and shapes."""
    a, b = (
        {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (expected, found))
    )
    return a == b
