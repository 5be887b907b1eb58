"""Whether the files of a run of any kind say the same: for programs that read runs without a study.

A pre-training is held as run_check.py does it, a fine-tuning as finetune_check.py. What was
imported has neither trained nor been scored here: only what it says of the net is held, and it may
say no loss or score.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.lab.reading import finetune_check, run_check, run_files, task_runs
from scalelab.lab.reading.run_files import Run


def of_run(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    environment: Mapping[str, Any],
    lines: Sequence[dict[str, Any]],
) -> list[str]:
    """What is wrong with a run that has a result.

    Args:
      folder: its run folder.
      config: the content of config.json.
      result: that of result.json.
      environment: that of environment.json.
      lines: those of metrics.jsonl.

    Returns:
      A line a problem; [] if the result can be believed.
    """
    if "imported" in result:
        told = result.get("eval") or any(result.get(clock) for clock in run_check.CLOCKS)
        said = ["result.json tells of a training, and that the run was imported"] if told else []
        return said + run_check.of_config(config, result)
    if config.get("task") is not None or result.get("task") is not None:
        try:
            one = task_runs.read_seed(folder, 0)  # whichever it is
        except ValueError as error:
            return [str(error)]
        lost = result.get("status") == "completed" and one.failed
        return ([f"result.json: {lost}"] if lost else []) + finetune_check.of_run(one)
    found = run_check.of_result(result) + run_check.of_environment(environment)
    return found or run_check.of_contents(folder, config, result, lines)


def opened(folder: pathlib.Path) -> Run:
    """Opens a run, finished or not, whose files say the same.

    Raises:
      ValueError: there is none, or one of its files is damaged or says other things than another.
    """
    run = run_files.open_run(folder)
    found = []
    if run.result is not None:
        found = of_run(folder, run.config, run.result, run.environment, run.lines)
    if found:
        raise ValueError(f"{folder} is damaged: {'; '.join(found)}")
    return run
