"""Begins a pre-training with the parameters of another run, trained here or imported.

Clocks, schedule and optimizer begin at zero. Parameters that both nets have are taken, heads of
objectives included; a head that the other run lacks is initialised from the seed. The tokenizer is
the other run's, because the rows of its embedding table belong to its pieces.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from scalelab import objectives, systems
from scalelab.config.pretraining import Config, resolve
from scalelab.optim.adamw import parameter_name
from scalelab.runs import pretrained, run_folder
from scalelab.runs.pretrained import Pretrained

SHAPE = ("num_heads", "width", "num_layers", "ffn_width", "max_len")


@dataclasses.dataclass
class Start:
    """The run whose parameters a pre-training begins, or began, with.

    Attributes:
      path: folder of that run.
      tokenizer_dir: the tokenizer that the parameters are for.
      opened: that run; None: this run has begun, and its own folder has all that it needs.
      digest: of the parameters.
      fresh: names of parameters that it lacks.
      unused: names of parameters that only it has.
    """

    path: str
    tokenizer_dir: pathlib.Path
    opened: Pretrained | None
    digest: str
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def put(self, made: Any, placed: Any) -> Any:
        """Returns the parameters of the run's first step.

        Args:
          made: its initial parameters.
          placed: their shardings, a tree like it.

        Returns:
          A tree like it, sharded alike.
        """
        if self.opened is None:
            return made
        given = _by_name(self.opened.params)

        def take(path: tuple[Any, ...], new: jax.Array, where: Any) -> jax.Array:
            old = given.get(parameter_name(path))
            # A copy: a step takes its state's memory, and other seeds begin with the same.
            return new if old is None else jax.device_put(np.array(old), where)

        return jax.tree_util.tree_map_with_path(take, made, placed)

    def describe(self) -> str:
        """Returns what the run prints of it at its start."""
        if self.opened is None:
            return (
                f"began with the parameters of {self.path}, digest {self.digest}, which is not read"
                f" again: parameters and tokenizer are those in {self.tokenizer_dir.parent}"
            )
        opened, tokenizer = self.opened, self.opened.config.tokenizer
        ended = "" if opened.finished else ", which has not reached the end of its budget"
        lines = [
            f"begins with the parameters of {opened.path}, step {opened.step}{ended}; clocks,"
            " schedule and optimizer begin at zero",
            f"its tokenizer is that run's: {tokenizer.kind}, {tokenizer.vocab_size:,} pieces",
        ]
        for what, names in (("initialised afresh", self.fresh), ("left out", self.unused)):
            lines += [f"{what}: {', '.join(names)}"] if names else []
        return "\n".join(lines)


def begin(config: Config, workdir: pathlib.Path) -> tuple[Config, Start | None]:
    """Opens the run that config.machine.init names, for a run to begin with its parameters.

    A run that has a checkpoint of its own does not need that run: neither it nor --init must be
    there.

    Args:
      config: of the run.
      workdir: its folder.

    Returns:
      The config with that run's digest and tokenizer, and where the run begins; without such a run
      the config as it is, and None: random parameters.

    Raises:
      ValueError: there is no such run, its parameters do not fit, or they are not those that the
        config names or that the folder's run began with.
    """
    init, begun = config.machine.init, _begun(workdir)
    if init is None and begun is None:
        if config.init is not None:
            raise ValueError(
                f"config.init = {config.init!r} is the digest of parameters to begin with, but does"
                " not say where they are: name the run with --init=RUN, which fills it in"
            )
        return config, None
    given = pathlib.Path(str(begun.machine.init) if init is None and begun is not None else init)
    if given.resolve() == workdir.resolve():
        raise ValueError(
            f"--init={given} is the --workdir itself: a run begins with the parameters of another;"
            " leave --init out to continue this one"
        )
    if begun is not None and pathlib.Path(str(begun.machine.init)).resolve() == given.resolve():
        digest = str(begun.init)
        _check_digest(config, given, digest)
        start = Start(str(given), workdir / "tokenizer", None, digest)
        return _with_init(config, str(given), digest, begun.tokenizer), start
    try:
        opened = pretrained.load(given)
    except ValueError as error:
        if begun is None:
            raise
        raise ValueError(
            f"{error}; the run in {workdir} began with {begun.machine.init}: leave --init out to"
            " continue it"
        ) from None
    digest = pretrained.digest_of(opened.params)
    if begun is not None and begun.init != digest:
        raise ValueError(
            f"the run in {workdir} began with the parameters of {begun.machine.init}, digest"
            f" {begun.init}; --init={given} has others, digest {digest}: leave --init out to"
            " continue it, or choose another --workdir"
        )
    _check_digest(config, given, digest)
    config = _with_init(config, str(given), digest, opened.config.tokenizer)
    return config, _fit(opened, digest, config)


def _begun(workdir: pathlib.Path) -> Config | None:
    """Returns the config of a folder's run if it began with another's parameters and has saved."""
    values = run_folder.read_json(workdir / "config.json") if workdir.is_dir() else None
    saved = any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*"))
    there = saved and (workdir / "tokenizer" / "tokenizer.json").is_file()
    if not there or not isinstance(values, Mapping) or values.get("init") is None:
        return None
    return resolve(values)


def _check_digest(config: Config, given: pathlib.Path, digest: str) -> None:
    if config.init not in (None, digest):
        raise ValueError(
            f"the parameters in {given} are not those that config.init names: their digest is"
            f" {digest}, expected {config.init}"
        )


def _with_init(config: Config, init: str, digest: str, tokenizer: Any) -> Config:
    machine = dataclasses.replace(config.machine, init=init)
    return dataclasses.replace(config, init=digest, tokenizer=tokenizer, machine=machine)


def _fit(opened: Pretrained, digest: str, config: Config) -> Start:
    """Refuses parameters of another net; lists the parameters that only one of the two has."""
    path, theirs = opened.path, opened.config
    if theirs.system != config.system:
        raise ValueError(
            f"--init={path} is a run of {theirs.system}, config.system is {config.system!r}: a run"
            f" begins with parameters of its own system; set system={theirs.system}"
        )
    size = config.tokenizer.vocab_size
    made = objectives.make(
        config.objectives,
        vocab_size=size,
        special_ids=opened.tokenizer.special_ids,
        mask_rate=config.mask_rate,
    )
    net = systems.make_net(opened.system, config.net, vocab_size=size)
    ours = _by_name(objectives.abstract_params(net, made, max_len=config.short.max_len))
    given = _by_name(opened.params)
    common = ours.keys() & given.keys()
    wrong = [
        f"{name}: {list(given[name].shape)} there, {list(ours[name].shape)} here"
        for name in sorted(common)
        if given[name].shape != ours[name].shape
    ]
    outputs = theirs.net.output_embedding, config.net.output_embedding
    if outputs[0] != outputs[1]:
        raise ValueError(
            f"--init={path} scores tokens with another table: config.net.output_embedding is"
            f" {outputs[0]} there, {outputs[1]} here; make them equal"
        )
    if wrong:
        there, here = (_shape(one) for one in (theirs, config))
        fields = [
            f"config.net.{name} is {there[name]} there, {here[name]} here"
            for name in SHAPE
            if there[name] != here[name]
        ]
        more = f"\n  and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise ValueError(
            f"--init={path} is of another shape ({'; '.join(fields)}): make them equal. Parameters"
            f" that do not fit, {len(wrong)} of {len(ours)}:\n  " + "\n  ".join(wrong[:6]) + more
        )
    fresh, unused = (tuple(sorted(one.keys() - common)) for one in (ours, given))
    return Start(str(path), opened.tokenizer_dir, opened, digest, fresh, unused)


def _shape(config: Config) -> dict[str, int]:
    found = {name: getattr(config.net, name) for name in SHAPE}
    return found | {"ffn_width": config.net.ffn_width or 4 * config.net.width}


def _by_name(params: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {parameter_name(path): leaf for path, leaf in leaves}
