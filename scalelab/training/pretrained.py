"""Opens pre-training runs: for fine-tuning, decoding, evaluation, or to begin another run."""

import dataclasses
import functools
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict
from flax.typing import ArrayPytree

from scalelab import objectives as objectives_lib
from scalelab import systems
from scalelab.config.fields import frozen_names
from scalelab.config.pretraining import Config, resolve
from scalelab.data import tokenizers
from scalelab.data.tokenizers import Tokenizer
from scalelab.helpers.files import reading
from scalelab.helpers.names import prefix_errors
from scalelab.objectives import Term
from scalelab.records import run_files
from scalelab.records.run_files import RunRecord
from scalelab.state import Model, make_model
from scalelab.systems import System
from scalelab.training.checkpoint import Checkpoints


class FramedText(NamedTuple):
    """The ids of the special tokens around a single text."""

    begin: tuple[int, ...]  # before the text
    end: tuple[int, ...]  # after it
    source: tuple[int, ...] | None  # the whole source; None: the model reads no source


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A pre-training run, with the parameters of one of its checkpoints."""

    path: pathlib.Path
    config: Config
    system: System
    tokenizer: Tokenizer
    params: ArrayPytree  # after `step`, on the first device, layers stacked on axis 0
    step: int
    finished: bool  # whether it reached the end of its budget
    # Name -> run whose model the loss or the model uses.
    frozen: "Mapping[str, Pretrained]" = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def model(self) -> Model:
        """The parts of its training program; `frozen` has parameters of other runs' models."""
        ids, joins = self.tokenizer.special_ids, self.tokenizer.joins
        return make_model(self.config, ids, self.frozen, joins)

    @property
    def net(self) -> nn.Module:
        """Its model, unbound."""
        return self.model.net

    @property
    def terms(self) -> tuple[Term, ...]:
        """The summands of its loss."""
        return self.model.terms

    @property
    def own_terms(self) -> tuple[Term, ...]:
        """Those of `terms` that use no model of another run."""
        return tuple(t for t in self.terms if not frozen_names(objectives_lib.load(t.name)))

    @property
    def predicts(self) -> str | None:
        """The tokens that it was trained to predict: "next" or "masked"; None: none."""
        return next((t.objective.predicts for t in self.terms if t.objective.predicts), None)

    @property
    def shifts_masks(self) -> bool:
        """Whether the model was also trained to predict a masked token from the state before it."""
        return any(getattr(t.objective, "shifts_masks", False) for t in self.terms)

    @property
    def reading_notes(self) -> tuple[str, ...]:
        """A note for tables if pre-training had no such inputs as `frame_text` makes; else ()."""
        name = self.config.system
        note = f"single texts are framed as {name} declares; pre-training had no such inputs"
        return () if systems.reading(self.system).trained else (note,)

    def frame_text(self, *, causal: bool) -> FramedText:
        """Returns the ids of the special tokens around a single text, as the system declares.

        Args:
          causal: whether each token is predicted from the tokens before it.

        Raises:
          ValueError: the tokenizer has no token of a role.
        """
        asked, frame = systems.reading(self.system), self.tokenizer.frame()
        ids = systems.special_ids(self.system, self.tokenizer.special_ids)

        def find(roles: Sequence[str] | None, default: tuple[int, ...]) -> tuple[int, ...]:
            return default if roles is None else tuple(ids[role] for role in roles)

        end = find(asked.end, () if causal else frame.end)
        if not self.system.HAS_SOURCE:
            return FramedText(find(asked.begin, frame.begin), end, None)
        begin = find(("start", *(asked.begin or ())), ())
        return FramedText(begin, end, find(asked.source, (*frame.begin, *frame.end)))

    def check_alone(self, *, source: bool = False) -> None:
        """Raises ValueError if the model has inputs beside a text; `source` allows a source."""
        if more := systems.more_inputs(self.system, source=source):
            raise ValueError(
                f"{self.path} is a run of {self.config.system}, whose model reads {more} beside a"
                " text; expected a model that reads a text alone"
            )

    @property
    def n_model(self) -> int:
        """The size N, as the system declares it."""
        return systems.n_model(self.system, self.config.model, self.config.system_options)

    @property
    def tokenizer_dir(self) -> pathlib.Path:
        """Its tokenizer's files, in Hugging Face layout."""
        return self.path / "tokenizer"


def load(path: str | pathlib.Path, step: int | None = None) -> Pretrained:
    """Opens the run folder of a pre-training, at the checkpoint of a step; None: the newest.

    Raises:
      ValueError: the folder holds none, or a part of one is missing; the message says which.
    """
    path = pathlib.Path(path)
    run = run_files.read_run(path, metrics=False)
    config = resolve_config(run)
    for part in ("tokenizer/tokenizer.json", "checkpoints"):
        if not (path / part).exists():
            raise ValueError(f"the run in {path} has no {part}")
    tokenizer = Tokenizer.load(path / "tokenizer")
    with prefix_errors(f"the run in {path} needs the models it learned from"):
        frozen = load_frozen(config.machine.frozen)
    with prefix_errors(f"{path}/tokenizer is not the tokenizer of this run"):
        expected = nn.unbox(abstract_params(config, tokenizer.special_ids, frozen))
        if (num := tokenizer.vocab_size) > config.tokenizer.vocab_size:
            size = config.tokenizer.vocab_size
            raise ValueError(f"tokenizer.json has {num} pieces, the model {size}")
    check_tokenizer(run)
    saved = _read(path / "checkpoints", step)
    if saved is None:
        raise ValueError(f"the run in {path} has saved no checkpoint yet")
    compare_shapes(path, *(flatten_dict(tree, sep="/") for tree in (saved["params"], expected)))
    system, step = systems.load(config.system), int(saved["step"])
    finished = run.result is not None
    return Pretrained(path, config, system, tokenizer, saved["params"], step, finished, frozen)


def compare_shapes(path: pathlib.Path, given: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Raises ValueError if parameters have other names or shapes than the model that was made."""
    there, expected = ({name: np.shape(x) for name, x in tree.items()} for tree in (given, made))
    wrong = [
        f"{name}: expected {expected.get(name)}, found {there.get(name)}"
        for name in sorted(expected.keys() | there.keys())
        if there.get(name) != expected.get(name)
    ]
    if wrong:
        raise ValueError(
            f"the checkpoint in {path} contradicts its config.json or tokenizer:"
            f" {'; '.join(wrong[:8])}"
        )


def check_tokenizer(run: RunRecord) -> None:
    """Raises ValueError if a run's tokenizer has changed since the run began.

    The tokenizer of a fine-tuning must be as at its end.
    """
    ended = getattr(run.result, "tokenizer_digest", None)
    recorded = ended or run.environment.tokenizer_digest
    if recorded not in (None, tokenizers.digest(run.folder / "tokenizer")):
        raise ValueError(
            f"{run.folder}/tokenizer has changed since the run was trained: its digest is not the"
            " recorded one; restore its files"
        )


def load_trained(folder: pathlib.Path) -> ArrayPytree:
    """Returns the parameters {"body", "head"} of a finished fine-tuning, on the first device.

    Raises:
      ValueError: the folder keeps none.
    """
    directory = folder / "checkpoints"
    saved = _read(directory) if directory.is_dir() else None
    if saved is None:
        raise ValueError(f"{folder} holds no finished fine-tuning; train it in a new --workdir")
    return saved["params"]


def tree_digest(params: ArrayPytree) -> str:
    """Returns a CRC-32 of all parameters, as eight hexadecimal digits."""
    crc = 0
    for leaf in jax.tree.leaves(params):
        crc = zlib.crc32(np.ascontiguousarray(leaf), crc)
    return f"{crc:08x}"


def resolve_config(run: RunRecord) -> Config:
    """Returns the config of a pre-training run; raises ValueError if it is none."""
    if run.task == "imported":
        raise ValueError(
            f"{run.folder} is an imported classifier; expected a pre-training run (a classifier is"
            f" for python -m scalelab.eval TASK --init={run.folder})"
        )
    if run.task is not None:
        raise ValueError(
            f"{run.folder} is a run fine-tuned on {run.task!r}; expected a pre-training run"
        )
    with reading(run.folder / "config.json"):
        return resolve(run.config)


def abstract_params(
    config: Config, special_ids: Mapping[str, int], frozen: Mapping[str, Pretrained]
) -> ArrayPytree:
    """Returns shapes, types and axis names of the parameters that a config describes, boxed."""
    model = make_model(config, special_ids, frozen)
    sizes = {"max_len": config.short.max_len, "frozen": model.frozen}
    return objectives_lib.abstract_variables(model.net, model.terms, boxed=True, **sizes)["params"]


def _read(directory: pathlib.Path, step: int | None = None) -> ArrayPytree:
    """Returns the checkpoint of a step, or the newest sound one, as plain dicts; None: no one."""
    checkpoints = Checkpoints(directory, num_last=None)
    restored = checkpoints.restore(None, step)
    checkpoints.close()
    return None if restored is None else restored[0]


# --- Frozen models ----------------


def load_frozen(places: str | None) -> dict[str, Pretrained]:
    """Opens the runs that config.machine.frozen names: "teacher=RUN,other=RUN".

    Raises:
      ValueError: another form, or no such run.
    """
    found = {}
    for part in places.split(",") if places else ():
        name, equals, folder = part.partition("=")
        if not equals or not name.isidentifier() or name in found:
            raise ValueError(
                f"config.machine.frozen = {places!r}: expected NAME=RUN, joined by ',', such as"
                " teacher=runs/bert"
            )
        with prefix_errors(f"config.machine.frozen, {name}"):
            found[name] = load(folder)
    return found


def freeze(config: Config, found: Mapping[str, Pretrained]) -> Config:
    """Returns the config with the digests of its frozen models; refuses changed models."""
    digests = [f"{name}={tree_digest(opened.params)}" for name, opened in found.items()]
    digest = ",".join(digests) or None
    if config.frozen not in (None, digest):
        raise ValueError(
            f"config.frozen = {config.frozen!r}, but the models of config.machine.frozen ="
            f" {config.machine.frozen!r} have the digests {digest!r}: give the runs that it names"
        )
    return dataclasses.replace(config, frozen=digest)


def check_tokenizers(frozen: Mapping[str, Pretrained], tokenizer: Tokenizer) -> None:
    """Raises ValueError if token ids of a model of another run mean other pieces than here."""
    for name, opened in frozen.items():
        both = opened.tokenizer, tokenizer
        theirs, ours = ([own.token(i) for i in range(own.vocab_size)] for own in both)
        if theirs != ours:
            sizes = f"{len(theirs):,} pieces there, {len(ours):,} here"
            pairs = enumerate(zip(theirs, ours, strict=False))
            differing = [f"id {i} is {a!r} there, {b!r} here" for i, (a, b) in pairs if a != b]
            raise ValueError(
                f"config.machine.frozen, {name}: the run in {opened.path} has another tokenizer"
                f" ({', '.join([sizes, *differing[:1]])}), so that its scores are of other pieces:"
                " train both on the same corpus with the same config.tokenizer, or begin with a run"
                " that has its tokenizer (--init)"
            )
