"""Checks and lists runs that one program can train: they differ in seed, order and rate only."""

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import TypeVar

from scalelab.config import pretraining as config_lib
from scalelab.config.fields import flatten
from scalelab.config.pretraining import Config

# The seed decides parameters, examples, masks, dropout and, without an order_seed, the order.
VARYING = ("seed", "data.order_seed", "optim.learning_rate")

T = TypeVar("T")


def check(configs: Sequence[Config]) -> None:
    """Checks that one program can train some runs.

    Raises:
      ValueError: it cannot; the message names the fields in which they must not differ.
    """
    flat = [flatten(dataclasses.asdict(config)) for config in configs]
    found = {
        name: list(dict.fromkeys(fields.get(name) for fields in flat))
        for name in dict.fromkeys(itertools.chain(*flat))
    }
    differing = [
        f"{name}: {', '.join(map(repr, values))}"
        for name, values in found.items()
        if len(values) > 1 and name not in VARYING
    ]
    if differing:
        raise ValueError(
            "these runs cannot share one program; train them one by one (only"
            f" {', '.join(VARYING)} may differ). They differ in\n  " + "\n  ".join(differing)
        )
    for field, why in (("optim.total_secs", "slow each other down"),
                       ("machine.distributed", "need one process")):  # fmt: skip
        if len(configs) > 1 and flat[0][field]:
            raise ValueError(f"several runs in one program {why}: leave config.{field} out")


def expand_runs(
    config: Config,
    workdir: pathlib.Path,
    seeds: Sequence[str] = (),
    rates: Sequence[str] = (),
    orders: Sequence[str] = (),
) -> list[tuple[Config, pathlib.Path]]:
    """Lists the config and the folder of each run: every seed at every rate in every order.

    Args:
      config: their common config.
      workdir: holds the folders.
      seeds: as given on the command line; empty: the config's.
      rates: learning rates, likewise.
      orders: seeds of the data order, likewise.

    Raises:
      ValueError: values that are not numbers, or that name a run twice.
    """
    runs = {}
    for seed, order, rate in itertools.product(
        _numbers(int, "seeds", seeds) or [config.seed],
        _numbers(int, "order_seeds", orders) or [config.data.order_seed],
        _numbers(float, "learning_rates", rates) or [config.optim.learning_rate],
    ):
        if rate == 0:
            raise ValueError("a learning rate of 0 trains nothing: expected rates above it")
        values = dataclasses.asdict(config) | {"seed": seed}
        values["data"] |= {"order_seed": order}
        values["optim"] |= {"learning_rate": rate}
        parts = [f"seed{seed}", f"order{order}" * bool(orders), f"rate{rate}" * bool(rates)]
        name = "-".join(filter(None, parts))
        if name in runs:
            raise ValueError(f"a run is named twice: {name}")
        runs[name] = config_lib.resolve(values), workdir / name
    return list(runs.values())


def _numbers(kind: type[T], flag: str, texts: Sequence[str]) -> list[T]:
    try:
        return [kind(text) for text in texts]  # pyright: ignore[reportCallIssue]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"--{flag}={','.join(texts)}: expected {what}") from None
