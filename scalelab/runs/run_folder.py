"""The run folder: whether a run may use it, its lock, its config.json and environment.json."""

import contextlib
import fcntl
import pathlib
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from scalelab.config import pretraining as config_lib
from scalelab.helpers.files import write_json, write_text
from scalelab.runs import environment, json_files

LOOK_SECS = 0.2  # longer than a look at a lock takes


def claim(
    workdir: pathlib.Path, config: config_lib.Config | Mapping[str, Any]
) -> dict[str, Any] | None:
    """Checks that a run may use `workdir`; a finished one needs no right to write there.

    Args:
      workdir: the run folder; made if absent.
      config: of the run that wants it.

    Returns:
      The finished run's result if this very run has been completed there, else None.

    Raises:
      ValueError: the folder holds another run, or its files cannot be read.
      OSError: it cannot be made or written.
    """
    refusal = _try_to_write(workdir)
    try:
        before = read_json(workdir / "config.json")
        result = read_json(workdir / "result.json")
    except ValueError:
        if refusal is not None:
            raise refusal from None
        raise
    differing = [] if before is None else config_lib.science_diff(config, before)
    if differing:
        raise ValueError(
            f"workdir {workdir} holds a run with another config;"
            " choose another --workdir, or undo:\n  " + "\n  ".join(differing)
        )
    if result is None and refusal is not None:
        raise refusal
    return result


def _try_to_write(workdir: pathlib.Path) -> OSError | None:
    """Makes the folder if it is absent; returns the error if it cannot be written."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".probe-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror
        return OSError(f"workdir {workdir} cannot be written: {reason}; choose another --workdir")
    return None


def describe_finished(workdir: pathlib.Path, result: Mapping[str, Any]) -> str:
    """Returns what a program says of a folder whose run is finished."""
    return (
        f"{workdir} is already finished ({result.get('steps')} steps)."
        f" Results: {workdir}/result.json"
    )


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
    """Keeps a second process from training in the folder at the same time.

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
    """Returns the fields of a JSON file; None if there is no such file; see `json_files`."""
    return json_files.read_object(path)
