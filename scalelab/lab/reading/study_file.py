"""A study's file, WORKDIR/studies/<name>.json: what is in it, and whether it is whole.

A study's file is written by `scalelab.study` before anything starts. It says what is compared:

  name, title, question   words for people
  protocol, scale         section of the benchmark protocol ("7.5.1") or null; "full" or smaller
  comparison              dotted name of the module with its statements (compare/comparison.py), or
                          null
  matched                 the clock on which all runs come equally far, a name of matched.CLOCKS
  free                    factors in which runs may differ: system, shape, variant, seed
  allow                   config fields that may differ too; every table says so
  tables, figures, hypotheses   a table is a kind, "large", or a kind and rows, "large:width"
  rows                    name -> {"title", "stages", "shapes", "variants"}: reports/table_rows.py
  tasks, recipe, finetune_seeds
  adaptation              task -> {dotted field of a fine-tuning: value}, all that is science
  chosen                  fields that every fine-tuning chooses on dev itself, by its recipe's grid
  departures              system -> [{"field", "value", "source"}]
  fields, system_fields, variants   "field=value" lines for all runs; of a system; of a variant
  runs                    [{"name", "stage", "system", "shape": {"A", "H", "L"}, "variant", "seed",
                            "finetune", "config"}], config being every resolved field
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.lab.reading import run_files

# What a study's file must have.
FACTS = {
    "name": str, "title": str, "question": str, "scale": str, "matched": str, "free": list,
    "allow": list, "tables": list, "figures": list, "hypotheses": list, "tasks": list,
    "recipe": str, "finetune_seeds": int, "finetune": dict, "departures": dict, "variants": dict,
    "stages": dict, "runs": list,
}  # fmt: skip


def read(path: pathlib.Path) -> dict[str, Any]:
    """The content of a study's file.

    Raises:
      ValueError: it is damaged.
    """
    problems: list[str] = []
    facts, _ = run_files.read_json(path, problems)
    if not problems:
        problems += [
            f"{name} is {type(facts[name]).__name__}, expected {kind.__name__}"
            if name in facts else f"{name} is missing"
            for name, kind in FACTS.items() if not isinstance(facts.get(name), kind)
        ]  # fmt: skip
        rows = facts.get("rows", {})  # files from before tables had rows have none
        whole = isinstance(rows, Mapping) and all(_is_rows(*item) for item in rows.items())
        problems += [] if whole else ["rows are not what they should be"]
    if not problems:
        problems += [f"run {i} is damaged" for i, r in enumerate(facts["runs"]) if not _is_run(r)]
    if problems:
        raise ValueError(
            f"{path} is damaged ({'; '.join(problems)}): move it away, and `study plan` or `study"
            " run` writes it anew"
        )
    return facts


def _is_rows(name: str, rows: Any) -> bool:
    """Whether it is what a study's file says of some rows; their name is part of a file's."""
    parts = {"title": str, "stages": list, "shapes": list, "variants": list}
    return (
        name.isidentifier()
        and isinstance(rows, Mapping)
        and rows.keys() == parts.keys()
        and all(isinstance(rows[part], kind) for part, kind in parts.items())
        and all(isinstance(x, str) for part in parts if part != "title" for x in rows[part])
    )


def _is_run(run: Any) -> bool:
    """Whether it is what a study's file says of a run."""
    parts = {"name": str, "stage": str, "system": str, "variant": str, "seed": int, "config": dict,
             "shape": dict}  # fmt: skip
    return (
        isinstance(run, Mapping)
        and all(isinstance(run.get(name), kind) for name, kind in parts.items())
        and all(isinstance(run["shape"].get(k), int) for k in "AHL")
    )
