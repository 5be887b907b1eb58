"""A pre-training that begins with the parameters of another run, trained here or imported.

Clocks, schedule and optimizer begin at zero. What both nets have is taken, heads of objectives
included; a head that the other run lacks is initialised as ever. The tokenizer is the other run's:
its rows of the embedding table mean nothing to any other.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

from scalelab import build, pretrained, state
from scalelab.config import Config
from scalelab.optim.adamw import parameter_name
from scalelab.pretrained import Pretrained

SHAPE = ("num_heads", "width", "num_layers", "ffn_width", "max_len")


@dataclasses.dataclass
class Start:
    """Where a pre-training begins.

    Attributes:
      opened: the run that gives the parameters.
      fresh: names of parameters that it lacks.
      unused: names of those that only it has.
    """

    opened: Pretrained
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def put(self, made: Any, placed: Any) -> Any:
        """The parameters of the run's first step.

        Args:
          made: its initial parameters.
          placed: their shardings, a tree like it.

        Returns:
          A tree like it, sharded alike.
        """
        given = _by_name(self.opened.params)

        def take(path: tuple[Any, ...], new: jax.Array, where: Any) -> jax.Array:
            old = given.get(parameter_name(path))
            # A copy: a step takes its state's memory, and other seeds begin with the same.
            return new if old is None else jax.device_put(np.array(old), where)

        return jax.tree_util.tree_map_with_path(take, made, placed)

    def forget(self) -> None:
        """Lets go of the parameters, whose memory is wanted."""
        self.opened = dataclasses.replace(self.opened, params=None)

    def said(self) -> str:
        """What the run says of it at its start."""
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


def begin(configs: Sequence[Config]) -> tuple[list[Config], Start | None]:
    """Opens the run that these begin with, if config.machine.init names one.

    Args:
      configs: of runs that train together.

    Returns:
      The configs with that run's digest and tokenizer in them, and where they begin; without one
      the configs as they are, and None: with random parameters.

    Raises:
      ValueError: there is no such run, its parameters do not fit, or they are not those that the
        configs name.
    """
    init = configs[0].machine.init
    if init is None:
        if configs[0].init is not None:
            raise ValueError(
                f"config.init = {configs[0].init!r} is the digest of parameters to begin with, but"
                " not where they are: give the run with --init=RUN, which fills it in"
            )
        return list(configs), None
    opened = pretrained.load(init)
    digest = pretrained.digest_of(opened.params)
    for config in configs:
        if config.init not in (None, digest):
            raise ValueError(
                f"the parameters in {init} are not those that config.init names: their digest is"
                f" {digest}, expected {config.init}"
            )
    tokenizer = opened.config.tokenizer
    made = [dataclasses.replace(one, init=digest, tokenizer=tokenizer) for one in configs]
    return made, _fit(opened, made[0])


def _fit(opened: Pretrained, config: Config) -> Start:
    """Refuses parameters of another net; names those that only one of the two has."""
    path, theirs = opened.path, opened.config
    if theirs.system != config.system:
        raise ValueError(
            f"--init={path} is a run of {theirs.system}, config.system is {config.system!r}: a run"
            f" begins with parameters of its own system; set system={theirs.system}"
        )
    objectives = build.make_objectives(config, opened.tokenizer.special_ids)
    net = build.make_net(config, opened.system)
    ours = _by_name(
        jax.eval_shape(
            lambda key: nn.unbox(
                state.fresh(
                    key, net, objectives, optax.identity(), max_len=config.short.max_len
                ).params
            ),
            jax.random.key(0),
        )
    )
    given = _by_name(opened.params)
    common = ours.keys() & given.keys()
    wrong = [
        f"{name}: {list(given[name].shape)} there, {list(ours[name].shape)} here"
        for name in sorted(common)
        if given[name].shape != ours[name].shape
    ]
    if wrong:
        fields = [
            f"config.net.{name} is {getattr(theirs.net, name)} there, {getattr(config.net, name)}"
            " here"
            for name in SHAPE
            if getattr(theirs.net, name) != getattr(config.net, name)
        ]
        more = f"\n  and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise ValueError(
            f"--init={path} is of another shape ({'; '.join(fields)}): make them equal. Parameters"
            f" that do not fit, {len(wrong)} of {len(ours)}:\n  " + "\n  ".join(wrong[:6]) + more
        )
    return Start(opened, tuple(sorted(ours.keys() - common)), tuple(sorted(given.keys() - common)))


def _by_name(params: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {parameter_name(path): leaf for path, leaf in leaves}
