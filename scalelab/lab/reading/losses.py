"""The validation losses of a run, finished or not."""

from typing import Any

from scalelab.lab.reading import run_files
from scalelab.lab.reading.study_runs import PretrainRun


def of_run(run: PretrainRun, problems: list[str]) -> dict[int, list[dict[str, Any]]]:
    """Reads the validations of a run.

    Args:
      run: the run.
      problems: takes what is wrong with them.

    Returns:
      Maximum length -> lines of metrics.jsonl, those in which a number is lacking left out; empty
      if there is none yet, or the run is damaged.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    if run.damaged:
        problems.append(run.damaged)
        return found
    lines = run_files.read_metrics(run.folder / "metrics.jsonl", problems)
    for row in run_files.validations(lines):
        found.setdefault(row["eval/max_len"], []).append(row)
    return found
