"""Begins a pre-training with parameters of another run (--init), also of another system.

The new run takes the tokenizer of the other run, because the rows of the embedding table belong to
its tokens. Clocks, schedule and optimizer begin at zero. Parameters that the other run lacks are
initialized from the seed.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict
from flax.typing import ArrayPytree

from scalelab import systems
from scalelab.config.pretraining import Config, Tokenizer
from scalelab.nn import axes
from scalelab.optim.adamw import parameter_name
from scalelab.records import run_files
from scalelab.training import pretrained
from scalelab.training.pretrained import Pretrained

LAYERED = (axes.LAYERS, axes.GROUPS)


class Origin(NamedTuple):
    """The parameter of the other run from which a parameter is filled."""

    source: str  # its name in the other run
    layers: tuple[int, ...] = ()  # the entries of its axis 0 that are used; () means all


@dataclasses.dataclass
class Start:
    """The run from which a pre-training takes its first parameters."""

    path: str  # folder of that run
    tokenizer_dir: pathlib.Path
    opened: Pretrained | None  # None: not needed, because the new run has a checkpoint
    digest: str  # digest of the parameters
    # Name of a parameter in the new run -> its origin.
    taken: Mapping[str, Origin] = dataclasses.field(default_factory=dict)
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
        given = flatten_dict(self.opened.params, sep="/")

        def take(key: jax.tree_util.KeyPath, new: jax.Array, where: jax.NamedSharding) -> jax.Array:
            taken = self.taken.get(parameter_name(key))
            if taken is None:
                return new
            # A copy, because a step reuses its state's memory, and other seeds need these arrays.
            old = np.array(given[taken.source])
            return jax.device_put(old[list(taken.layers)] if taken.layers else old, where)

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
        taken = dict[str, None]()
        if self.fresh or any(origin != Origin(name) for name, origin in self.taken.items()):
            for name, (source, layers) in self.taken.items():
                place, origin = ("/".join(part.split("/")[:2]) for part in (name, source))
                text = f"{place} from {origin}" if name != source else place
                taken[f"{text} (layers {list(layers)})" if layers else text] = None
        parts = ("taken", taken), ("initialized afresh", self.fresh), ("left out", self.unused)
        return "\n".join(lines + [f"{what}: {', '.join(names)}" for what, names in parts if names])


def begin(
    config: Config, workdir: pathlib.Path, asked: Collection[str] = ()
) -> tuple[Config, Start | None, dict[str, Pretrained]]:
    """Opens the runs that a run needs, by config.machine.init and config.machine.frozen.

    A run with a checkpoint of its own needs neither the run of --init nor --init. `asked` has the
    names of the fields that the user set by flags, such as tokenizer.vocab_size.

    Returns:
      The config with the digests of the other runs, and with the tokenizer of the run that it
      starts from; the start, None for random parameters; the frozen models by their names.

    Raises:
      ValueError: there is no such run, its parameters do not fit, or they differ from the ones that
        the config names or that the run in `workdir` began with; or its tokenizer differs in a
        field of `asked`.
    """
    nets, begun = pretrained.load_frozen(config.machine.frozen), _read_begun(workdir)
    config = pretrained.freeze(config, nets)
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
    if hasattr(systems.load(config.system), "count"):
        raise ValueError(
            f"--init={given}: a run of {config.system} counts its own text: leave --init out"
        )
    if begun is not None and before is not None and before.resolve() == given.resolve():
        opened, digest, tokenizer = None, str(begun.init), begun.tokenizer
    else:
        hint = f"; the run in {workdir} began with {before}: leave --init out to continue it"
        try:
            opened = pretrained.load(given)
        except ValueError as error:
            raise ValueError(f"{error}{hint * (before is not None)}") from None
        digest, tokenizer = pretrained.tree_digest(opened.params), opened.config.tokenizer
        if begun is not None and begun.init != digest:
            raise ValueError(f"--init={given} has other parameters than {begun.init}{hint}")
    if config.init not in (None, digest):
        raise ValueError(
            f"the parameters in {given} are not those that config.init names: their digest is"
            f" {digest}, expected {config.init}"
        )
    _check_asked(config, tokenizer, asked, given)
    machine = dataclasses.replace(config.machine, init=str(given))
    config = dataclasses.replace(config, init=digest, tokenizer=tokenizer, machine=machine)
    if opened is None:
        return config, Start(str(given), workdir / "tokenizer", None, digest), nets
    return config, _fit(opened, digest, config, nets), nets


def _check_asked(
    config: Config, tokenizer: Tokenizer, asked: Collection[str], given: pathlib.Path
) -> None:
    """Raises ValueError if a flag asks for another tokenizer than that of the run of --init."""
    for field in asked:
        group, _, name = field.rpartition(".")
        if group == "tokenizer" and getattr(config.tokenizer, name) != getattr(tokenizer, name):
            raise ValueError(
                f"--config.{field}={getattr(config.tokenizer, name)} contradicts --init={given},"
                f" whose tokenizer has {name} = {getattr(tokenizer, name)}: the new run takes that"
                " tokenizer, so leave this flag out"
            )


def _read_begun(workdir: pathlib.Path) -> Config | None:
    """Returns the config of a folder's run if the run began with another one and has saved."""
    saved = any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*"))
    needed = (workdir / "config.json", workdir / "tokenizer" / "tokenizer.json")
    if not saved or not all(path.is_file() for path in needed):
        return None
    config = pretrained.resolve_config(run_files.read_run(workdir, metrics=False))
    return None if config.init is None else config


def match(
    wanted: Mapping[str, nn.LogicallyPartitioned], given: Mapping[str, tuple[int, ...]]
) -> dict[str, Origin]:
    """Matches parameters by name and shape.

    If the other run has no parameter of the same name, the name is shortened from the left until
    the other run has it: `passage/embed/tokens/table` is filled from `embed/tokens/table`. If the
    new run has fewer layers, or fewer groups of shared layers, it takes evenly spaced ones,
    beginning with the first.

    Args:
      wanted: the new run's parameters: name -> boxed shape, with the names of its axes.
      given: the other run's parameters: name -> shape.

    Returns:
      The origin of each parameter that has one.
    """
    found = {}
    for name, box in wanted.items():
        shape, parts = box.value.shape, name.split("/")
        ends = ("/".join(parts[start:]) for start in range(len(parts) - 1))
        source = next((end for end in ends if end in given), None)
        if source is None:
            continue
        there = given[source]
        if there == shape:
            found[name] = Origin(source)
        elif box.names[:1] and box.names[0] in LAYERED and there[1:] == shape[1:] and there > shape:
            layers = range(shape[0])
            found[name] = Origin(source, tuple(i * there[0] // shape[0] for i in layers))
    return found


def _fit(
    opened: Pretrained, digest: str, config: Config, frozen: Mapping[str, Pretrained]
) -> Start:
    """Matches the parameters of two models.

    Raises:
      ValueError: no parameter fits; or, within one system, a parameter of both has shapes that do
        not fit, or the output embeddings, activations or epsilons differ.
    """
    path, source = opened.path, opened.config
    boxed = pretrained.abstract_params(config, opened.tokenizer.special_ids, frozen)
    wanted = flatten_dict(boxed, sep="/")
    given = {name: leaf.shape for name, leaf in flatten_dict(opened.params, sep="/").items()}
    taken = match(wanted, given)
    wrong = [
        f"{name}: {list(given[name])} there, {list(wanted[name].value.shape)} here"
        for name in sorted(wanted.keys() & given.keys() - taken.keys())
    ]
    same = source.system == config.system
    others = ("output_embedding", "activation", "norm_epsilon")  # they change no parameter's shape
    if same and (
        wrong or any(getattr(source.model, x) != getattr(config.model, x) for x in others)
    ):
        names = ("num_heads", "width", "num_layers", "ffn_width", "max_len", *others)
        fields = [
            f"config.model.{name} is {there} there, {here} here"
            for name in names
            if (there := getattr(source.model, name)) != (here := getattr(config.model, name))
        ]
        raise ValueError(
            f"--init={path} is another model: make these fields equal: {'; '.join(fields)}."
            f" {len(wrong)} parameters do not fit: {', '.join(wrong[:1])}"
        )
    if not any(len(wanted[name].value.shape) > 1 for name in taken):
        raise ValueError(
            f"--init={path} is a run of {source.system}: none of its parameters fits a model of"
            f" {config.system} by name and shape: {', '.join(wrong[:1]) or 'no name is equal'}"
        )
    used = {there.source for there in taken.values()}
    fresh, unused = (
        tuple(sorted(names)) for names in (wanted.keys() - taken.keys(), given.keys() - used)
    )
    return Start(str(path), opened.tokenizer_dir, opened, digest, taken, fresh, unused)
