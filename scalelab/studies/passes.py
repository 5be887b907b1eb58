"""Counts the tokens of a pass over the corpus, for budgets of equal passes: "xpass:VARIANT".

Two formats make examples of different lengths of the same text; the ratio depends on the corpus,
the lengths and the tokenizer. So it is counted in the examples themselves, once for a study:
WORKDIR/passes.json keeps the counts.
"""

import dataclasses
import json
import pathlib
from typing import Any

from scalelab import systems
from scalelab.config.pretraining import Config
from scalelab.helpers.files import write_json

FACTOR = "xpass:"  # the value of a field that is multiplied; the name of a variant follows
FILE = "passes.json"
DIGITS = 4  # of a factor, so that budgets can be read


def factor(one: Config, other: Config, workdir: pathlib.Path) -> float:
    """Returns the tokens of a pass of one config divided by those of another config.

    Raises:
      ValueError: the corpus is missing, unreadable or too small.
    """
    return round(tokens(one, workdir) / tokens(other, workdir), DIGITS)


def tokens(config: Config, workdir: pathlib.Path) -> int:
    """Counts the tokens of a pass over the training examples of all phases; may prepare them.

    Args:
      config: of the examples; their order does not matter.
      workdir: the study's folder, which keeps the number.

    Raises:
      ValueError: the corpus is missing, unreadable or too small.
    """
    path, key = workdir / FILE, _key(config)
    known = _read(path)
    if key not in known:
        from scalelab.data import load_data

        known[key] = load_data(config, systems.load(config.system)).pass_tokens
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, known)
    return known[key]


def keep(workdir: pathlib.Path, to: pathlib.Path) -> None:
    """Adds the counts of one study's folder to those of another."""
    found = _read(workdir / FILE)
    if found:
        write_json(to / FILE, _read(to / FILE) | found)


def _key(config: Config) -> str:
    """Returns the fields that decide which examples exist."""
    parts = {name: getattr(config, name) for name in ("data", "tokenizer", "short", "long")}
    found: dict[str, Any] = {name: dataclasses.asdict(part) for name, part in parts.items()}
    del found["data"]["order_seed"]
    return json.dumps({"system": config.system, "seed": config.seed} | found)


def _read(path: pathlib.Path) -> dict[str, int]:
    """Returns the kept counts; none if the file is damaged, because they can be made again."""
    try:
        kept = json.loads(path.read_text())
        return {key: n for key, n in kept.items() if type(n) is int and n > 0}
    except (OSError, ValueError, AttributeError):
        return {}
