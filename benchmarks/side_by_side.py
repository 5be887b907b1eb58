"""What benchmarks beside a peer in PyTorch share."""

import importlib.util
import os

BUSY = ": others use the cores, so these numbers say little"


def pin(threads: int) -> None:
    """Gives this process so many cores; XLA has a thread for each. Call before JAX starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))


def peer_left_out() -> str | None:
    """Why the peer cannot be measured; None: it can."""
    import jax

    if jax.default_backend() != "cpu":
        return f"it is measured on CPU, not beside {jax.devices()[0].device_kind}"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed (pip install '.[parity]')"
    return None


def peer_versions() -> str:
    """Of what it is made with."""
    import torch
    import transformers

    return f"transformers {transformers.__version__}, torch {torch.__version__}"
