"""The model card of an export: that of its run, with what the hub wants to know of it above."""

import pathlib

from scalelab.lab.show import card

PIPELINES = {"mlm": "fill-mask", "clm": "text-generation", "classify": "text-classification"}


def write(
    folder: pathlib.Path,
    *,
    system: str,
    architecture: str,
    pipeline: str | None,
    step: int,
    params: int,
    remarks: list[str],
) -> str:
    """The text of README.md.

    Args:
      folder: of the run.
      system: of the run.
      architecture: the class that loads it.
      pipeline: what it is for, if there is one.
      step: the step that its parameters are of.
      params: how many they are.
      remarks: what a reader should know of the export.
    """
    front = ["---", "library_name: transformers"]
    front += [f"pipeline_tag: {pipeline}"] if pipeline else []
    front += ["tags:", "- scalelab", f"- {system}", "---", ""]
    loads = f"load it with `{architecture}.from_pretrained`"
    text = card.write(folder, step=step, loads=loads, params=params, remarks=remarks)
    return "\n".join(front) + "\n" + text
