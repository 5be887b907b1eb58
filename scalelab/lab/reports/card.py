"""The card of a run in Markdown: what it is, what it cost, its scores, where it is from.

Of a run that has no result yet the clocks and losses are those of metrics.jsonl so far.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.lab.reading import finetune_check, run_files, task_runs

CLOCKS = ("steps", "tokens", "flops", "seconds")


def of_run(
    folder: pathlib.Path,
    *,
    step: int | None = None,
    loads: str = "",
    params: int | None = None,
    remarks: Sequence[str] = (),
) -> str:
    """The card of a run folder, its fine-tunings in tasks/ included.

    Args:
      folder: the run folder.
      step: of an unfinished run, the step that the card is of; None: the last one in its metrics.
      loads: how to load it, to end the first sentence.
      params: how many parameters it has, where it has no result yet.
      remarks: what a reader should know besides the run's own remarks.

    Raises:
      ValueError: there is no run, or a file of it is damaged.
    """
    run = run_files.open_run(folder)
    lines = [line for line in run.lines if step is None or line.get("step", 0) <= step]
    last = lines[-1] if lines else {}
    evals: dict[str, Any] = {}
    for line in lines:
        if "eval/max_len" in line:
            values = {k.removeprefix("eval/"): v for k, v in line.items() if k.startswith("eval/")}
            length = values.pop("max_len")
            evals[str(length)] = {**values, "step": line["step"]}
    return text(
        name=folder.absolute().name,
        config=run.config,
        result=run.result,
        environment=run.environment,
        reached=_reached(last, last.get("step", 0) if step is None else step),
        evals=evals,
        tasks=_task_scores(folder / "tasks"),
        loads=loads,
        params=params,
        remarks=[*remarks, *((run.result or {}).get("remarks") or [])],
    )


def _reached(line: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The clocks of a line of metrics.jsonl; where it is of an earlier step, they say so."""
    late = "" if line.get("step") == step else f" by step {line.get('step'):,}" if line else ""
    clocks = {clock: line[clock] for clock in CLOCKS if clock in line}
    return {"steps": step} | {k: f"{_shown(v)}{late}" if late else v for k, v in clocks.items()}


def text(
    *,
    name: str,
    config: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    environment: Mapping[str, Any],
    reached: Mapping[str, Any],
    remarks: Sequence[str],
    loads: str = "",
    params: int | None = None,
    evals: Mapping[str, Any] | None = None,
    tasks: Mapping[str, str] | None = None,
) -> str:
    """The text of a card.

    Args:
      name: of the run.
      config: its config.json.
      result: its result.json; None: it has not reached the end of its budget.
      environment: its environment.json.
      reached: without a result, how far it is on each clock that is known; "steps" at least.
      remarks: what a reader should know.
      loads: how to load it, to end the first sentence.
      params: how many parameters it has, where no result says so.
      evals: without a result, its last validations, as a result has them.
      tasks: task -> its scores, of what was fine-tuned from it.
    """
    task = config.get("task")
    what = f"fine-tuned on {task}" if task else f"pre-trained with {config.get('objective')}"
    found = result or {"eval": evals or {}}
    lines = [
        f"# {name}",
        "",
        f"A {config['system']} {what}{'; ' if loads else ''}{loads}.",
        "",
        *_table("What it is", _facts(config, result, params)),
        *_table("Departures from the control", _departures(found)),
        *_table("What it cost", _budget(result, reached)),
        *_table("Scores", _scores(found)),
        *_table("Fine-tuned from it", tasks or {}),
        *_table("Where it is from", _origin(environment, result)),
    ]
    if remarks:
        lines += ["## Remarks", "", *(f"- {remark}" for remark in remarks), ""]
    return "\n".join(lines)


def _task_scores(folder: pathlib.Path) -> dict[str, str]:
    """For each task the mean over finished seeds of each metric on each dev split.

    Seeds whose files are damaged or were edited are left out, and named.
    """
    if not any(folder.glob("*/seed*")):
        return {}
    found = {}
    for task in task_runs.read(folder, tolerant=True).values():
        broken = {run.seed: problems for run in task.runs
                  if (problems := _damage(run))}  # fmt: skip
        task = dataclasses.replace(task, runs=tuple(
            dataclasses.replace(run, scores={}, failed="damaged") if run.seed in broken else run
            for run in task.runs
        ))  # fmt: skip
        num, splits = len(task.finished), {split for split, _ in task.keys}
        scores = [
            f"{metric}{f' ({split})' * (len(splits) > 1)}"
            f" {100 * sum(task.values((split, metric))) / num:.1f}"
            for split, metric in task.keys
        ]
        seeds = f"{num} of {len(task.runs)} seeds finished"
        named = (f"; seed {seed}: {'; '.join(problems)}" for seed, problems in broken.items())
        said = "".join(named).replace(f"{folder.parent}/", "")
        found[task.title] = f"{', '.join(scores) or 'no score'}; {seeds}{said}"
    return found


def _damage(run: task_runs.SeedRun) -> list[str]:
    """What is wrong with the files of an ended fine-tuning, and is no failure of its own."""
    if run.finished:
        return [f"damaged: {problem}" for problem in finetune_check.of_run(run)[:1]]
    return [run.failed] if run.failed and not run.result else []


def _departures(result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"`{d['field']}`": f"{_shown(d['value'])} ({d['source']})"
        for d in result.get("departures") or []
    }


def _table(title: str, rows: Mapping[str, Any]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {key} | {_shown(value)} |" for key, value in rows.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *lines, ""]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _facts(
    config: Mapping[str, Any], result: Mapping[str, Any] | None, params: int | None
) -> dict[str, Any]:
    net, data = config["net"], config.get("data", {})
    facts: dict[str, Any] = {
        "shape (heads x width x layers)": "{num_heads}x{width}x{num_layers}".format(**net),
        "positions": net["max_len"],
        "table that scores tokens": net.get("output_embedding") or "the embedding's (tied)",
        "parameters": (result or {}).get("params") or params or "not recorded",
        "seed": config.get("seed"),
    }
    if "corpus" in data:
        facts |= {"corpus": data["corpus"], "format": data["format"]}
        if (result or {}).get("data_hash"):
            facts["corpus sha256"] = str((result or {})["data_hash"])[:12]
        facts["tokenizer"] = "{kind}, {vocab_size} pieces".format(**config["tokenizer"])
    elif data:
        facts["data"] = ", ".join(f"{split} sha256 {str(d)[:12]}" for split, d in data.items())
    if config.get("recipe"):
        facts["recipe"] = config["recipe"]
    started = config.get("machine", {}).get("init") if result is None else result.get("init")
    if started:
        digest = config.get("init")
        facts["started from"] = f"{started}, parameters {digest}" if digest != started else started
    if (result or {}).get("initialised"):
        facts["initialised afresh"] = ", ".join((result or {})["initialised"])
    return facts


def _budget(result: Mapping[str, Any] | None, reached: Mapping[str, Any]) -> dict[str, Any]:
    if result is None:
        return {**reached, "steps": f"{reached['steps']:,}, and its budget not reached"}
    if "imported" in result:
        return {"budget": "imported; what its training cost is not recorded here"}
    return {key: result.get(key, "not recorded") for key in CLOCKS}


def _scores(result: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split, values in (result.get("eval") or {}).items():
        for metric, value in (values if isinstance(values, Mapping) else {"": values}).items():
            found[f"{split} {metric}".strip()] = "not finite" if value is None else value
    return found


def _origin(environment: Mapping[str, Any], result: Mapping[str, Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (result or {}).get("imported"):
        found["imported from"] = (result or {})["imported"]["source"]
    if environment.get("command"):
        found["command"] = f"`{environment['command']}`"
    commit, dirty = environment.get("git_commit"), environment.get("git_dirty")
    found["commit"] = f"{commit or 'not recorded'}{', with local changes' if dirty else ''}"
    if environment.get("numerics") is not None:
        found["version of the numbers"] = environment["numerics"]
    packages = environment.get("packages") or {}
    found["packages"] = ", ".join(f"{k} {v}" for k, v in packages.items()) or "not recorded"
    return found
