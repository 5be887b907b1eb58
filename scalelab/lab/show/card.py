"""The card of a run in Markdown: its config, cost, scores and origin.

The clocks and losses of a run without a result come from metrics.jsonl.
"""

import pathlib
from collections.abc import Mapping, Sequence

import jinja2

from scalelab.config.durations import CLOCKS
from scalelab.lab import tables
from scalelab.lab.load import task_runs
from scalelab.records import run_files
from scalelab.records.run_files import UNKNOWN, RunRecord, RunResult, TaskResult

DIGEST = 12  # characters of a digest that are shown

# The templates of cards and reports; text of users is escaped.
TEXT = jinja2.Environment(
    loader=jinja2.PackageLoader("scalelab.lab.show", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEXT.filters["md"] = tables.escape_markdown
PAGE = TEXT.overlay(autoescape=True)

Facts = dict[str, object]


def render(template: str, /, **values: object) -> str:
    """Renders a template: report.md, report.html or card.md."""
    environment = PAGE if template.endswith(".html") else TEXT
    return environment.get_template(template).render(**values)


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
    run = run_files.read_run(folder)
    result = run.result
    objective = run.config.get("objective")
    what = f"fine-tuned on {run.task}" if run.task else f"pre-trained with {objective}"
    cost, scores = _describe_progress(run, step)
    if result:
        cost = {clock.result: getattr(result, clock.result) for clock in CLOCKS.values()}
        scores = {
            f"{split} {metric}": _format_score(result, split, metric)
            for split, values in result.eval.items() for metric in values
        }  # fmt: skip
    if result and result.imported:
        cost = {"budget": f"imported; the cost of its training is {UNKNOWN}"}
    sections: dict[str, Mapping[str, object]] = {
        "Configuration": _describe_config(run, params),
        "Declared differences from the base config": {
            f"`{d.field}`": f"{_format(d.value)} ({d.source})"
            for d in getattr(result, "departures", ())
        },
        "Cost": cost,
        "Scores": scores,
        "Fine-tunings": _describe_tasks(folder / "tasks"),
        "Origin": _describe_origin(run),
    }
    known = {
        title: {key: _format(value) for key, value in facts.items() if value not in (None, "")}
        for title, facts in sections.items()
    }
    return render(
        "card.md",
        name=folder.absolute().name,
        sentence=f"A {run.config['system']} {what}{'; ' if loads else ''}{loads}.",
        sections={title: facts for title, facts in known.items() if facts},
        remarks=[*remarks, *getattr(result, "remarks", ())],
    )


def _describe_config(run: RunRecord, params: int | None) -> Facts:
    config, result = run.config, run.result
    net, data = config["model"], config.get("data") or {}
    start = result.init if result else (config.get("machine") or {}).get("init")
    digest, pretrained = config.get("init"), "corpus" in data
    tokenizer = {"kind": UNKNOWN, "vocab_size": UNKNOWN} | (config.get("tokenizer") or {})
    digests = ", ".join(f"{split} sha256 {str(d)[:DIGEST]}" for split, d in data.items())
    return {
        "shape (heads x width x layers)": str(run.shape),
        "positions": net.get("max_len"),
        "output embedding": net.get("output_embedding") or "tied to the input embedding",
        "parameters": (result and result.params) or params or UNKNOWN,
        "seed": config.get("seed"),
        "corpus": data.get("corpus"),
        "format": data.get("format"),
        "corpus sha256": (getattr(result, "data_hash", None) or "")[:DIGEST],
        "tokenizer": "{kind}, {vocab_size} pieces".format(**tokenizer) if pretrained else "",
        "data": "" if pretrained else digests,
        "recipe": config.get("recipe"),
        "started from": f"{start}, parameters {digest}" if start and digest != start else start,
        "initialized afresh": ", ".join(getattr(result, "initialised", ())),
    }


def _describe_progress(run: RunRecord, step: int | None) -> tuple[Facts, Facts]:
    """Returns clocks and last validations of a run until a step."""
    lines = [line for line in run.lines if step is None or line.get("step", 0) <= step]
    last = lines[-1] if lines else {}
    step = int(last.get("step", 0)) if step is None else step
    cost: Facts = {"steps": f"{step:,}, before the end of its budget"}
    cost = {clock.result: last.get(clock.logged) for clock in CLOCKS.values()} | cost
    scores: Facts = {}
    for line in lines:
        own = {key[5:]: value for key, value in line.items() if key.startswith("eval/")}
        for key, value in (own | {"step": line["step"]}).items() if own else ():
            if key != "max_len":
                scores[f"{line.get('eval/max_len', '')} {key}".strip()] = value
    return cost, scores


def _describe_origin(run: RunRecord) -> Facts:
    environment = run.environment
    dirty = ", with local changes" if environment.git_dirty else ""
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    return {
        "imported from": (run.result and run.result.imported or {}).get("source"),
        "command": environment.command and f"`{environment.command}`",
        "commit": f"{environment.git_commit or UNKNOWN}{dirty}",
        "numerics version": environment.numerics,
        "packages": packages or UNKNOWN,
    }


def _format_score(result: RunResult | TaskResult, split: str, metric: str) -> float | str:
    """Returns a score, or the reason why there is none."""
    value = result.eval[split][metric]
    if value is not None:
        return value
    why = getattr(result, "undefined", {}).get(split, {}).get(metric)
    return f"undefined ({why})" if why else "not finite"


def _describe_tasks(folder: pathlib.Path) -> Facts:
    """Returns for each task the mean over finished seeds of each metric on each dev split."""
    found: Facts = {}
    for task in task_runs.read(folder).values() if any(folder.glob("*/seed*")) else ():
        splits = {split for split, _ in task.keys}
        scores = [
            f"{metric}{f' ({split})' * (len(splits) > 1)}"
            f" {100 * sum(values := task.values((split, metric))) / len(values):.1f}"
            for split, metric in task.keys
        ] + [f"{metric} undefined ({why})" for (_, metric), why in task.undefined.items()]
        seeds = f"{len(task.finished)} of {len(task.runs)} seeds finished"
        found[task.title] = f"{', '.join(scores) or 'no score'}; {seeds}"
    return found


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
