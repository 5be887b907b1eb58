"""Opens a pre-training run: for fine-tuning, decoding, evaluation, or as the start of another run.

A run that starts from another takes its parameters and its tokenizer, because the rows of the
embedding table belong to the tokenizer's pieces. Clocks, schedule and optimizer begin at zero.
Heads that the other run lacks are initialised from the seed.
"""

import dataclasses
import functools
import pathlib
import zlib
from collections.abc import Mapping

import flax.linen as nn
import jax
import numpy as np
from flax.typing import ArrayPytree

from scalelab import objectives as objectives_lib
from scalelab import systems
from scalelab.config.fields import frozen_names
from scalelab.config.pretraining import Config, resolve
from scalelab.data.tokenizers import Tokenizer
from scalelab.objectives import Term
from scalelab.optim.adamw import parameter_name
from scalelab.records import run_files
from scalelab.records.run_files import RunRecord, Unreadable
from scalelab.state import make_terms, nets_of
from scalelab.systems import System
from scalelab.training.checkpoint import Checkpoints


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
    # Name -> run whose net the loss or the net uses.
    frozen: "Mapping[str, Pretrained]" = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def net(self) -> nn.Module:
        """Its net, unbound."""
        size, remat = self.config.tokenizer.vocab_size, self.config.machine.remat
        return systems.make_net(
            self.system, self.config.net, self.config.system_options, vocab_size=size, remat=remat,
            frozen=nets_of(self.frozen),
        )  # fmt: skip

    @functools.cached_property
    def terms(self) -> tuple[Term, ...]:
        """The summands of its loss."""
        return make_terms(
            self.config, self.tokenizer.special_ids, self.frozen, self.tokenizer.joins
        )

    @property
    def own_terms(self) -> tuple[Term, ...]:
        """Those of `terms` that use no net of another run."""
        return tuple(t for t in self.terms if not frozen_names(objectives_lib.load(t.name)))

    @property
    def frozen_params(self) -> dict[str, ArrayPytree]:
        """The parameters of the nets of other runs that its loss uses, by their names."""
        return {name: opened.params for name, opened in self.frozen.items()}

    @property
    def predicts(self) -> str | None:
        """The tokens that it was trained to predict: "next" or "masked"; None: none."""
        return next((t.objective.predicts for t in self.terms if t.objective.predicts), None)

    @property
    def shifts_masks(self) -> bool:
        """Whether the net was also trained to predict a masked token from the state before it."""
        return any(getattr(t.objective, "shifts_masks", False) for t in self.terms)

    def check_alone(self, *, source: bool = False) -> None:
        """Raises ValueError if the net has inputs beside a text; `source` allows a source."""
        more = systems.more_inputs(self.system)
        if more and (frozen_names(self.system) or not source):
            raise ValueError(
                f"{self.path} is a run of {self.config.system}, whose net reads {more} beside a"
                " text; expected a net that reads a text alone"
            )

    @property
    def n_model(self) -> int:
        """The size N, as the system declares it."""
        return systems.n_model(self.system, self.config.net, self.config.system_options)

    @property
    def tokenizer_dir(self) -> pathlib.Path:
        """Its tokenizer's files, in Hugging Face layout."""
        return self.path / "tokenizer"


def load(path: str | pathlib.Path, step: int | None = None) -> Pretrained:
    """Opens the run folder of a pre-training, at a step or, for None, at its newest checkpoint.

    Raises:
      ValueError: the folder holds none, or a part of one is missing; the message says which.
    """
    path = pathlib.Path(path)
    run = run_files.read_run(path, metrics=False)
    config = _resolve_config(run)
    for part in ("tokenizer/tokenizer.json", "checkpoints"):
        if not (path / part).exists():
            raise ValueError(f"the run in {path} has no {part}")
    tokenizer = Tokenizer.load(path / "tokenizer")
    try:
        frozen = load_frozen(config.machine.frozen)
    except ValueError as error:
        raise ValueError(f"the run in {path} needs the nets that it learnt from: {error}") from None
    try:
        expected = _abstract_params(config, tokenizer, frozen)
        if tokenizer.vocab_size > config.tokenizer.vocab_size:
            sizes = tokenizer.vocab_size, config.tokenizer.vocab_size
            raise ValueError("tokenizer.json has {} pieces, the net {}".format(*sizes))
    except ValueError as error:
        raise ValueError(f"{path}/tokenizer is not the tokenizer of this run: {error}") from None
    saved = _read(path / "checkpoints", step)
    if saved is None:
        raise ValueError(f"the run in {path} has saved no checkpoint yet")
    shapes = [
        {name: leaf.shape for name, leaf in by_name(tree).items()}
        for tree in (expected, saved["params"])
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"the checkpoint in {path} is not of the net that its config.json describes: names or"
            " shapes of parameters differ"
        )
    system, step = systems.load(config.system), int(saved["step"])
    finished = run.result is not None
    return Pretrained(path, config, system, tokenizer, saved["params"], step, finished, frozen)


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


def by_name(params: ArrayPytree) -> dict[str, jax.Array]:
    """Returns the leaves of a tree of parameters by their names."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {parameter_name(path): leaf for path, leaf in leaves}


def _resolve_config(run: RunRecord) -> Config:
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
    try:
        return resolve(run.config)
    except ValueError as error:
        raise Unreadable(run.folder / "config.json", str(error)) from None


def _abstract_params(
    config: Config, tokenizer: Tokenizer, frozen: Mapping[str, Pretrained]
) -> ArrayPytree:
    """Returns shapes and types of the parameters that a config describes."""
    system, size = systems.load(config.system), config.tokenizer.vocab_size
    net = systems.make_net(
        system, config.net, config.system_options, vocab_size=size, frozen=nets_of(frozen)
    )
    made = make_terms(config, tokenizer.special_ids, frozen)
    params = {name: opened.params for name, opened in frozen.items()}
    sizes = {"max_len": config.short.max_len, "frozen": params}
    return objectives_lib.abstract_variables(net, made, **sizes)["params"]


def _read(directory: pathlib.Path, step: int | None = None) -> ArrayPytree:
    """Returns the checkpoint of a step, or the newest sound one, as plain dicts; None: no one."""
    checkpoints = Checkpoints(directory, num_last=None)
    restored = checkpoints.restore(None, step)
    checkpoints.close()
    return None if restored is None else restored[0]


# --- Beginning with another run ----------------


@dataclasses.dataclass
class Start:
    """The run from which a pre-training takes its first parameters."""

    path: str  # folder of that run
    tokenizer_dir: pathlib.Path
    opened: Pretrained | None  # None: not needed, because the new run has a checkpoint
    digest: str  # of the parameters
    fresh: tuple[str, ...] = ()  # names of parameters that only the new run has
    unused: tuple[str, ...] = ()  # names of parameters that only the other run has

    def put(self, made: ArrayPytree, placed: ArrayPytree) -> ArrayPytree:
        """Returns the parameters of the run's first step.

        Args:
          made: its initial parameters, which those of `opened` replace.
          placed: the shardings of `made`, in an equal tree.
        """
        if self.opened is None:
            return made
        given = by_name(self.opened.params)

        def take(key: jax.tree_util.KeyPath, new: jax.Array, where: jax.NamedSharding) -> jax.Array:
            old = given.get(parameter_name(key))
            # A copy, because a step reuses its state's memory, and other seeds need these arrays.
            return new if old is None else jax.device_put(np.array(old), where)

        return jax.tree_util.tree_map_with_path(take, made, placed)

    def describe(self) -> str:
        """Returns the description that the run prints at its start."""
        if self.opened is None:
            return f"began with the parameters of {self.path}, digest {self.digest}"
        opened, tokenizer = self.opened, self.opened.config.tokenizer
        ended = "" if opened.finished else ", which has not reached the end of its budget"
        lines = [
            f"begins with the parameters of {opened.path}, step {opened.step}{ended}; its tokenizer"
            f" is that run's: {tokenizer.kind}, {tokenizer.vocab_size:,} pieces"
        ]
        for what, names in (("initialised afresh", self.fresh), ("left out", self.unused)):
            lines += [f"{what}: {', '.join(names)}"] if names else []
        return "\n".join(lines)


def begin(
    config: Config, workdir: pathlib.Path
) -> tuple[Config, Start | None, dict[str, Pretrained]]:
    """Opens the runs that a run needs, by config.machine.init and config.machine.frozen.

    A run with a checkpoint of its own needs neither the run of --init nor --init.

    Returns:
      The config with the digests of the other runs, and with the tokenizer of the run that it
      starts from; the start, None for random parameters; the frozen nets by their names.

    Raises:
      ValueError: there is no such run, its parameters do not fit, or they differ from the ones that
        the config names or that the run in `workdir` began with.
    """
    nets, begun = load_frozen(config.machine.frozen), _read_begun(workdir)
    config = _freeze(config, nets)
    if config.machine.init is None and begun is None:
        if config.init is not None:
            raise ValueError(
                f"config.init = {config.init!r} is a digest of parameters; name the run that has"
                " them with --init=RUN"
            )
        return config, None, nets
    before = None if begun is None else pathlib.Path(str(begun.machine.init))
    given = pathlib.Path(str(config.machine.init or before))
    if given.resolve() == workdir.resolve():
        raise ValueError(f"--init={given} is the --workdir itself: leave --init out to continue it")
    if begun is not None and before is not None and before.resolve() == given.resolve():
        opened, digest, tokenizer = None, str(begun.init), begun.tokenizer
    else:
        hint = f"; the run in {workdir} began with {before}: leave --init out to continue it"
        try:
            opened = load(given)
        except ValueError as error:
            raise ValueError(f"{error}{hint * (before is not None)}") from None
        digest, tokenizer = tree_digest(opened.params), opened.config.tokenizer
        if begun is not None and begun.init != digest:
            raise ValueError(f"--init={given} has other parameters than {begun.init}{hint}")
    if config.init not in (None, digest):
        raise ValueError(
            f"the parameters in {given} are not those that config.init names: their digest is"
            f" {digest}, expected {config.init}"
        )
    machine = dataclasses.replace(config.machine, init=str(given))
    config = dataclasses.replace(config, init=digest, tokenizer=tokenizer, machine=machine)
    if opened is None:
        return config, Start(str(given), workdir / "tokenizer", None, digest), nets
    return config, _fit(opened, digest, config, nets), nets


# --- Frozen nets ----------------


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
        try:
            found[name] = load(folder)
        except ValueError as error:
            raise ValueError(f"config.machine.frozen, {name}: {error}") from None
    return found


def _freeze(config: Config, found: Mapping[str, Pretrained]) -> Config:
    """Returns the config with the digests of its frozen nets; refuses nets that have changed."""
    digests = [f"{name}={tree_digest(opened.params)}" for name, opened in found.items()]
    digest = ",".join(digests) or None
    if config.frozen not in (None, digest):
        raise ValueError(
            f"config.frozen = {config.frozen!r}, but the nets of config.machine.frozen ="
            f" {config.machine.frozen!r} have the digests {digest!r}: give the runs that it names"
        )
    return dataclasses.replace(config, frozen=digest)


def check_tokenizers(frozen: Mapping[str, Pretrained], tokenizer: Tokenizer) -> None:
    """Refuses nets of other runs whose token ids mean other pieces than this run's.

    Raises:
      ValueError: with the first piece in which they differ.
    """
    for name, opened in frozen.items():
        theirs, ours = opened.tokenizer, tokenizer
        sizes = f"{theirs.vocab_size:,} pieces there, {ours.vocab_size:,} here"
        differing = [
            f"id {i} is {theirs.token(i)!r} there, {ours.token(i)!r} here"
            for i in range(min(theirs.vocab_size, ours.vocab_size))
            if theirs.token(i) != ours.token(i)
        ]
        if differing or theirs.vocab_size != ours.vocab_size:
            raise ValueError(
                f"config.machine.frozen, {name}: the run in {opened.path} has another tokenizer"
                f" ({', '.join([sizes, *differing[:1]])}), so that its scores are of other pieces:"
                " train both on the same corpus with the same config.tokenizer, or begin with a run"
                " that has its tokenizer (--init)"
            )


def _read_begun(workdir: pathlib.Path) -> Config | None:
    """Returns the config of a folder's run if the run began with another one and has saved."""
    saved = any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*"))
    needed = (workdir / "config.json", workdir / "tokenizer" / "tokenizer.json")
    if not saved or not all(path.is_file() for path in needed):
        return None
    config = _resolve_config(run_files.read_run(workdir, metrics=False))
    return None if config.init is None else config


def _fit(
    opened: Pretrained, digest: str, config: Config, frozen: Mapping[str, Pretrained]
) -> Start:
    """Refuses parameters of another net; lists the parameters that only one of the two has."""
    path, source = opened.path, opened.config
    if source.system != config.system:
        raise ValueError(
            f"--init={path} is a run of {source.system}, config.system is {config.system!r}: a run"
            f" begins with parameters of its own system; set system={source.system}"
        )
    wanted = by_name(_abstract_params(config, opened.tokenizer, frozen))
    given = by_name(opened.params)
    common = wanted.keys() & given.keys()
    wrong = [
        f"{name}: {list(given[name].shape)} there, {list(wanted[name].shape)} here"
        for name in sorted(common)
        if given[name].shape != wanted[name].shape
    ]
    if wrong or source.net.output_embedding != config.net.output_embedding:
        names = ("num_heads", "width", "num_layers", "ffn_width", "max_len", "output_embedding")
        fields = [
            f"config.net.{name} is {there} there, {here} here"
            for name in names
            if (there := getattr(source.net, name)) != (here := getattr(config.net, name))
        ]
        raise ValueError(
            f"--init={path} is another net: make these fields equal: {'; '.join(fields)}."
            f" {len(wrong)} parameters do not fit: {', '.join(wrong[:1])}"
        )
    fresh, unused = (tuple(sorted(names.keys() - common)) for names in (wanted, given))
    return Start(str(path), opened.tokenizer_dir, opened, digest, fresh, unused)
