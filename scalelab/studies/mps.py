"""NVIDIA's MPS for the processes of a pool: their kernels run on a GPU at the same time."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from scalelab.resources import host

CONTROL, START = "nvidia-cuda-mps-control", "-d"


@contextlib.contextmanager
def shared_gpu(num_workers: int) -> Iterator[dict[str, str]]:
    """Runs MPS during a block if several processes share a GPU and no daemon runs.

    Yields:
      The variables by which the processes find it; none if they share the GPU by time slices.
    """
    if num_workers == 1 or not host.num_gpus() or _control("get_server_list"):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            started = _control(START, own) and _control("get_server_list", own)
            if not started:
                print(f"note: {CONTROL} is missing or does not start, so the processes share the"
                      " GPU by time slices", file=sys.stderr)  # fmt: skip
            yield own if started else {}
        finally:
            _control("quit", own)


def _control(request: str, variables: dict[str, str] | None = None) -> bool:
    """Starts the daemon, or sends a request, beyond Ctrl-C's reach; returns True on success."""
    # A daemon with CUDA_VISIBLE_DEVICES would number the devices anew for its clients.
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | (variables or {})
    with tempfile.TemporaryFile("w+") as answer:  # a pipe would wait for the daemon's end
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [CONTROL, *[request] * (request == START)], input=f"{request}\n", text=True,
                env=env, timeout=60, stdout=answer, stderr=answer, start_new_session=True,
            )  # fmt: skip
            answer.seek(0)
            return done.returncode == 0 and "Cannot find MPS" not in answer.read()
    return False
