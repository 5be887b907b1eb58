"""The card of a run in Markdown: its config, cost, scores and origin.

The clocks and losses of a run without a result are those of metrics.jsonl so far.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.lab.load import task_runs
from scalelab.lab.show import templates
from scalelab.runs import records
from scalelab.runs.records import Environment, Line, Result, RunRecord, RunResult

CLOCKS = ("steps", "tokens", "flops", "seconds")
UNKNOWN = "not recorded"
DIGEST = 12  # characters of a digest that are shown

Facts = dict[str, Any]


def write(
    folder: pathlib.Path,
    *,
    step: int | None = None,
    loads: str = "",
    params: int | None = None,
    remarks: Sequence[str] = (),
) -> str:
    """Returns the card of a run folder, including its fine-tunings in tasks/.

    Args:
      folder: the run folder.
      step: of an unfinished run, the step of the card; None: the last one in its metrics.
      loads: how to load the run, at the end of the first sentence.
      params: number of parameters, where the run has no result yet.
      remarks: further remarks for the reader.

    Raises:
      ValueError: there is no run, or a file of it is damaged.
    """
    run = records.read_run(folder)
    result = run.result
    what = (
        f"fine-tuned on {run.task}"
        if run.task
        else f"pre-trained with {run.config.get('objective')}"
    )
    sections = {
        "Configuration": _describe_config(run, params),
        "Departures from the control": {
            f"`{d.field}`": f"{_format(d.value)} ({d.source})"
            for d in (result.departures if isinstance(result, RunResult) else ())
        },
        "Cost": _describe_cost(run, step),
        "Scores": _list_scores(run, step),
        "Fine-tunings": _describe_tasks(folder / "tasks"),
        "Origin": _describe_origin(run.environment, result),
    }
    return templates.render(
        "card.md",
        name=folder.absolute().name,
        sentence=f"A {run.config['system']} {what}{'; ' if loads else ''}{loads}.",
        sections={
            title: {key: _format(value) for key, value in facts.items()}
            for title, facts in sections.items() if facts
        },
        remarks=[*remarks, *getattr(result, "remarks", ())],
    )  # fmt: skip


def _describe_config(run: RunRecord, params: int | None) -> Facts:
    config, result = run.config, run.result
    net, data = config["net"], config.get("data") or {}
    facts: Facts = {
        "shape (heads x width x layers)": str(run.shape),
        "positions": net.get("max_len"),
        "output embedding": net.get("output_embedding") or "tied to the input embedding",
        "parameters": (result and result.params) or params or UNKNOWN,
        "seed": config.get("seed"),
    }
    if "corpus" in data:
        facts |= {"corpus": data["corpus"], "format": data["format"]}
        if isinstance(result, RunResult) and result.data_hash:
            facts["corpus sha256"] = result.data_hash[:DIGEST]
        facts["tokenizer"] = "{kind}, {vocab_size} pieces".format(**config["tokenizer"])
    elif data:
        facts["data"] = ", ".join(f"{split} sha256 {str(d)[:DIGEST]}" for split, d in data.items())
    if config.get("recipe"):
        facts["recipe"] = config["recipe"]
    start = result.init if result else (config.get("machine") or {}).get("init")
    if start:
        digest = config.get("init")
        facts["started from"] = f"{start}, parameters {digest}" if digest != start else start
    if isinstance(result, RunResult) and result.initialised:
        facts["initialised afresh"] = ", ".join(result.initialised)
    return facts


def _describe_cost(run: RunRecord, step: int | None) -> Facts:
    if run.result is not None:
        if run.result.imported:
            return {"budget": f"imported; the cost of its training is {UNKNOWN}"}
        return {clock: getattr(run.result, clock) for clock in CLOCKS}
    lines = _lines_until(run, step)
    last = lines[-1] if lines else {}
    step = int(last.get("step", 0)) if step is None else step
    # Where the last line is of an earlier step, the clocks say so.
    late = f" by step {last['step']:,}" if last and last.get("step") != step else ""
    clocks = {c: f"{_format(last[c])}{late}" for c in CLOCKS if c in last}
    return {"steps": f"{step:,}, before the end of its budget"} | clocks


def _list_scores(run: RunRecord, step: int | None) -> Facts:
    """Scores by split and metric; the last validations of a run without a result."""
    evals: dict[str, Mapping[str, Any]] = dict(run.result.eval) if run.result else {}
    if run.result is None:
        for line in _lines_until(run, step):
            if "eval/max_len" in line:
                values = {k.removeprefix("eval/"): v for k, v in line.items() if k[:5] == "eval/"}
                evals[str(values.pop("max_len"))] = {**values, "step": line["step"]}
    return {
        f"{split} {metric}": "not finite" if value is None else value
        for split, values in evals.items() for metric, value in values.items()
    }  # fmt: skip


def _lines_until(run: RunRecord, step: int | None) -> list[Line]:
    return [line for line in run.lines if step is None or line.get("step", 0) <= step]


def _describe_tasks(folder: pathlib.Path) -> Facts:
    """For each task the mean over finished seeds of each metric on each dev split."""
    if not any(folder.glob("*/seed*")):
        return {}
    found = {}
    for task in task_runs.read(folder).values():
        splits = {split for split, _ in task.keys}
        scores = [
            f"{metric}{f' ({split})' * (len(splits) > 1)}"
            f" {100 * sum(values := task.values((split, metric))) / len(values):.1f}"
            for split, metric in task.keys
        ]
        seeds = f"{len(task.finished)} of {len(task.runs)} seeds finished"
        failed = "".join(f"; seed {run.seed}: {run.failed}" for run in task.runs if run.failed)
        failed = failed.replace(f"{folder.parent}/", "")
        found[task.title] = f"{', '.join(scores) or 'no score'}; {seeds}{failed}"
    return found


def _describe_origin(environment: Environment, result: Result | None) -> Facts:
    found: Facts = {}
    if result and result.imported:
        found["imported from"] = result.imported["source"]
    if environment.command:
        found["command"] = f"`{environment.command}`"
    dirty = ", with local changes" if environment.git_dirty else ""
    found["commit"] = f"{environment.git_commit or UNKNOWN}{dirty}"
    if environment.numerics is not None:
        found["numerics version"] = environment.numerics
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    found["packages"] = packages or UNKNOWN
    return found


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
