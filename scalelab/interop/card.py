"""The model card of an export: that of its run, with what the hub wants to know of it above."""

from collections.abc import Mapping
from typing import Any

from scalelab.lab import card

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
    return (
        "\n".join(front)
        + "\n"
        + card.text(
            name=name,
            loads=f"load it with `{architecture}.from_pretrained`",
            config=config,
            result=result,
            environment=environment,
            reached={"steps": step},
            remarks=remarks,
        )
    )
