"""The run folder: may this run use it, is it finished, may it be continued."""

import contextlib
import fcntl
import json
import pathlib
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from scalelab.config import pretraining as config_lib
from scalelab.helpers.files import write_json, write_text
from scalelab.resources import flops
from scalelab.runs import environment
from scalelab.runs.clocks import Clocks

LOOK_SECS = 0.2  # longer than a look at a lock takes


def claim(
    workdir: pathlib.Path, config: config_lib.Config | Mapping[str, Any]
) -> dict[str, Any] | None:
    """Makes sure that a run may use `workdir`.

    Args:
      workdir: the run folder; made if absent.
      config: of the run that wants it.

    Returns:
      The finished run's result if this very run has been completed there, else None.

    Raises:
      ValueError: the folder holds another run, or its files cannot be read.
      OSError: it cannot be made or written.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".probe-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(
            f"workdir {workdir} cannot be written: {error.strerror}; choose another --workdir"
        ) from None
    before = read_json(workdir / "config.json")
    if before is not None:
        differing = config_lib.science_diff(config, before)
        if differing:
            raise ValueError(
                f"workdir {workdir} holds a run with another config;"
                " choose another --workdir, or undo:\n  " + "\n  ".join(differing)
            )
    return read_json(workdir / "result.json")


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
    """Keeps a second process from training in the same folder at the same time.

    Raises:
      ValueError: one is training there.
    """
    with (workdir / ".lock").open("a") as file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # the run table, which asks who trains, holds it for a moment
                time.sleep(LOOK_SECS)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is training in {workdir} right now; wait for it, stop it, or"
                " choose another --workdir"
            ) from None
        yield


def describe(workdir: pathlib.Path, config: config_lib.Config | Mapping[str, Any]) -> None:
    """Writes config.json and environment.json; the environment of every start is kept."""
    write_text(workdir / "config.json", config_lib.to_json(config) + "\n")
    path = workdir / "environment.json"
    earlier = read_json(path) or {}
    now = environment.describe()
    write_json(
        path,
        now | {"earlier_starts": [*earlier.pop("earlier_starts", []), earlier] if earlier else []},
    )


def name(config: config_lib.Config) -> str:
    """Returns what messages call a run: "bert 2x128x2 seed 0"."""
    net = config.net
    return f"{config.system} {net.num_heads}x{net.width}x{net.num_layers} seed {config.seed}"


def check_ours(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Refuses a folder in Hugging Face layout, which has a config.json too.

    Args:
      path: the folder.
      values: the content of its config.json.

    Raises:
      ValueError: it is one; the message says how to import it.
    """
    if "system" not in values and {"model_type", "architectures"} & values.keys():
        raise ValueError(
            f"{path} is a folder in Hugging Face layout, no run folder; import it first:"
            f" python -m scalelab.interop.hf import {path} --workdir=runs/{path.absolute().name}"
        )


def read_json(path: pathlib.Path) -> dict[str, Any] | None:
    """A json file's content, or None if there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; expected a file") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); repair or delete it") from None


def result(
    config: config_lib.Config,
    clocks: Clocks,
    evals: dict[str, dict[str, float]],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """The content of result.json.

    Args:
      config: the run.
      clocks: their last readings.
      evals: the last validation at each length.
      facts: params, data_hash, timers and the like.
    """
    net = config.net
    return {
        "status": "completed",
        "task": None,
        "system": config.system,
        "shape": {"A": net.num_heads, "H": net.width, "L": net.num_layers},
        "n_model": flops.n_model(net.width, net.num_layers),
        "seed": config.seed,
        "steps": clocks.steps,
        "tokens": clocks.tokens,
        "flops": clocks.flops,
        "seconds": clocks.secs,
        "eval": evals,
        "peak_memory_bytes": environment.peak_memory_bytes(),
    } | facts
