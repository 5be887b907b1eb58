"""Run folders with planted losses, and what programs that read them say."""

import math
import pathlib

import in_process
import numpy as np
import run_folders

WIDTHS = (16, 24, 32, 48, 64, 96, 128)


def loss(n_model: float) -> float:
    return 2 + 30 * n_model**-0.3


def write(folder: pathlib.Path, widths=WIDTHS, system: str = "bert", num_seeds: int = 2, **fields):
    """Runs with planted losses: seeds scatter by 0.4% around them."""
    rng = np.random.default_rng(0)
    for width in widths:
        n_model = 24 * width**2
        for seed in range(num_seeds):
            config = run_folders.config_of(system, f"2x{width}x2", seed=seed)
            value = loss(n_model) * math.exp(0.004 * rng.normal())
            own = {"eval": {"128": {"loss": value, "step": 10}}, "seconds": 1e-3 * n_model} | fields
            run_folders.write(folder / f"{system}{width}-{seed}", config=config, steps=10, **own)
    return folder


def output(capsys, program, *arguments) -> str:
    in_process.run(program, arguments)
    return capsys.readouterr().out


def fails(capsys, program, *arguments) -> str:
    """The one message of a refusal; its further lines are indented."""
    code, _, errors = start(capsys, program, *arguments)
    assert code == 2
    assert all(line.startswith("  ") for line in errors.splitlines()[1:])
    return errors


def start(capsys, program, *arguments) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program."""
    return in_process.code(program, arguments), *capsys.readouterr()


def budgets(folder: pathlib.Path, widths=WIDTHS, warmups=(10, 10)) -> pathlib.Path:
    """Each model with 400 steps, and again with 800, and a loss 1 lower."""
    for k, steps in enumerate((400, 800)):
        budget = {"optim__total_steps": steps, "optim__warmup_steps": warmups[k]}
        for width in widths:
            config = run_folders.config_of("bert", f"2x{width}x2", **budget)
            reached = {"loss": loss(24 * width**2) - k, "step": steps}
            run_folders.write(folder / f"{width}-{steps}", config=config, steps=steps,
                              eval={"128": reached})  # fmt: skip
    return folder
