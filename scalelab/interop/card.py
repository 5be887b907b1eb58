"""The model card of an export: data, shape, budget on every clock, scores, command, commit."""

from collections.abc import Mapping
from typing import Any

PIPELINES = {"mlm": "fill-mask", "clm": "text-generation", "classify": "text-classification"}


def write(
    *,
    name: str,
    architecture: str,
    pipeline: str | None,
    config: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    environment: Mapping[str, Any],
    step: int,
    remarks: list[str],
) -> str:
    """The text of README.md.

    Args:
      name: of the run.
      architecture: the class that loads it.
      pipeline: what it is for, if there is one.
      config: the run's config.json.
      result: its result.json; None: it has not reached the end of its budget.
      environment: its environment.json.
      step: the step that its parameters are of.
      remarks: what a reader should know of the export.
    """
    front = ["---", "library_name: transformers"]
    front += [f"pipeline_tag: {pipeline}"] if pipeline else []
    front += ["tags:", "- scalelab", f"- {config['system']}", "---", ""]
    task = config.get("task")
    what = f"fine-tuned on {task}" if task else f"pre-trained with {config.get('objective')}"
    body = [
        f"# {name}",
        "",
        f"A {config['system']} {what}; load it with `{architecture}.from_pretrained`.",
        "",
        *_table("What it is", _facts(config, result)),
        *_table("What it cost", _budget(result, step)),
        *_table("Scores", _scores(result)),
        *_table("Where it is from", _origin(environment, result)),
    ]
    if remarks:
        body += ["## Remarks", "", *(f"- {remark}" for remark in remarks), ""]
    return "\n".join(front + body)


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


def _facts(config: Mapping[str, Any], result: Mapping[str, Any] | None) -> dict[str, Any]:
    net, data = config["net"], config.get("data", {})
    facts: dict[str, Any] = {
        "shape (heads x width x layers)": "{num_heads}x{width}x{num_layers}".format(**net),
        "positions": net["max_len"],
        "parameters": (result or {}).get("params", "not recorded"),
        "seed": config.get("seed"),
    }
    if "corpus" in data:
        facts |= {"corpus": data["corpus"], "format": data["format"]}
        facts["tokenizer"] = "{kind}, {vocab_size} pieces".format(**config["tokenizer"])
    elif data:
        facts["data"] = ", ".join(f"{split} sha256 {str(d)[:12]}" for split, d in data.items())
    if config.get("recipe"):
        facts["recipe"] = config["recipe"]
    if (result or {}).get("init"):
        facts["started from"] = (result or {})["init"]
    return facts


def _budget(result: Mapping[str, Any] | None, step: int) -> dict[str, Any]:
    if result is None:
        return {"steps": f"{step:,}, and its budget not reached"}
    if "imported" in result:
        return {"budget": "imported; what its training cost is not recorded here"}
    return {key: result.get(key, "not recorded") for key in ("steps", "tokens", "flops", "seconds")}


def _scores(result: Mapping[str, Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split, values in ((result or {}).get("eval") or {}).items():
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
    packages = environment.get("packages") or {}
    found["packages"] = ", ".join(f"{k} {v}" for k, v in packages.items()) or "not recorded"
    return found
