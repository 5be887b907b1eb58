"""A pre-training that begins with the parameters of another run, trained here or imported.

Clocks, schedule and optimizer begin at zero. What both nets have is taken, heads of objectives
included; a head that the other run lacks is initialised as ever. The tokenizer is the other run's:
its rows of the embedding table mean nothing to any other.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
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
    """Where a pre-training begins, or began.

    Attributes:
      path: the run that gives the parameters.
      tokenizer_dir: the tokenizer that they are for.
      opened: that run; None: all of it that is needed is in the folders of those that continue.
      digest: of the parameters.
      fresh: names of parameters that it lacks.
      unused: names of those that only it has.
    """

    path: str
    tokenizer_dir: pathlib.Path
    opened: Pretrained | None
    digest: str
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def put(self, made: Any, placed: Any) -> Any:
        """The parameters of the run's first step.

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

    def forget(self) -> None:
        """Lets go of the parameters, whose memory is wanted."""
        if self.opened is not None:
            self.opened = dataclasses.replace(self.opened, params=None)

    def said(self) -> str:
        """What the run says of it at its start."""
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


def begin(runs: Sequence[tuple[Config, pathlib.Path]]) -> tuple[list[Config], Start | None]:
    """Opens the run that these begin with, if config.machine.init names one.

    What has a checkpoint of its own needs that run no more: neither it nor --init must be there.

    Args:
      runs: config and folder of each; they train together.

    Returns:
      The configs with that run's digest and tokenizer in them, and where they begin; without one
      the configs as they are, and None: with random parameters.

    Raises:
      ValueError: there is no such run, its parameters do not fit, or they are not those that the
        configs name, or that a folder's run began with.
    """
    configs, init = [config for config, _ in runs], runs[0][0].machine.init
    begun = {workdir: found for _, workdir in runs if (found := _begun(workdir)) is not None}
    first = next(iter(begun.values()), None)
    lacking = [workdir for _, workdir in runs if workdir not in begun]
    if init is None and first is None:
        if configs[0].init is not None:
            raise ValueError(
                f"config.init = {configs[0].init!r} is the digest of parameters to begin with, but"
                " not where they are: give the run with --init=RUN, which fills it in"
            )
        return configs, None
    if init is None and lacking:
        raise ValueError(
            f"{next(iter(begun))} began with the parameters of {first.machine.init}, {lacking[0]}"
            f" has not begun: give --init={first.machine.init} again"
        )
    given = pathlib.Path(first.machine.init if init is None else init)
    for _, workdir in runs:
        if given.resolve() == workdir.resolve():
            raise ValueError(
                f"--init={given} is the --workdir itself: a run begins with the parameters of"
                " another; leave --init out to continue this one"
            )
    same = all(_same_place(one.machine.init, given) for one in begun.values())
    if first is not None and same and not lacking and len({o.init for o in begun.values()}) == 1:
        folder = next(iter(begun))
        digest = str(first.init)
        _check_named(configs, given, digest)
        start = Start(str(given), folder / "tokenizer", None, digest)
        return [_with(config, str(given), digest, first.tokenizer) for config in configs], start
    try:
        opened = pretrained.load(given)
    except ValueError as error:
        if first is None:
            raise
        raise ValueError(
            f"{error}; the run in {next(iter(begun))} began with {first.machine.init}: leave --init"
            " out to continue it"
        ) from None
    digest = pretrained.digest_of(opened.params)
    for workdir, one in begun.items():
        if one.init != digest:
            raise ValueError(
                f"the run in {workdir} began with the parameters of {one.machine.init}, digest"
                f" {one.init}; --init={given} has others, digest {digest}: leave --init out to"
                " continue it, or choose another --workdir"
            )
    _check_named(configs, given, digest)
    made = [_with(config, str(given), digest, opened.config.tokenizer) for config in configs]
    return made, _fit(opened, digest, made[0])


def _begun(workdir: pathlib.Path) -> Config | None:
    """The config of the run in a folder, if it began with another's parameters and has saved."""
    values = run_folder.read_json(workdir / "config.json") if workdir.is_dir() else None
    saved = any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*"))
    there = saved and (workdir / "tokenizer" / "tokenizer.json").is_file()
    if not there or not isinstance(values, Mapping) or values.get("init") is None:
        return None
    return resolve(values)


def _check_named(configs: Sequence[Config], given: pathlib.Path, digest: str) -> None:
    for config in configs:
        if config.init not in (None, digest):
            raise ValueError(
                f"the parameters in {given} are not those that config.init names: their digest is"
                f" {digest}, expected {config.init}"
            )


def _same_place(a: str | None, b: pathlib.Path) -> bool:
    return a is not None and pathlib.Path(a).resolve() == b.resolve()


def _with(config: Config, init: str, digest: str, tokenizer: Any) -> Config:
    machine = dataclasses.replace(config.machine, init=init)
    return dataclasses.replace(config, init=digest, tokenizer=tokenizer, machine=machine)


def _fit(opened: Pretrained, digest: str, config: Config) -> Start:
    """Refuses parameters of another net; names those that only one of the two has."""
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
