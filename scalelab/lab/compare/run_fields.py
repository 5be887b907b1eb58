"""What the comparability contract looks at in one run, read from its folder, by name.

Of a pre-training: its science fields, "data", a digest of its texts, and "numerics", the versions
of the numbers that its starts had. Of its fine-tunings on some tasks: "finetune.epochs" and so on,
as in finetunings.py. Seeds are left out, and what is off, which is None.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten
from scalelab.lab.compare.finetunings import PREFIX
from scalelab.lab.reading import run_files
from scalelab.lab.reading.run_files import mapping

INIT = PREFIX + "init"  # the weights that a fine-tuning began with
OWN = ("task", "seed", "system", "net", "machine", "init", "tokenizer_digest")  # of a fine-tuning

Fields = dict[str, Any]


def of_pretraining(
    folder: pathlib.Path, tuned: Mapping[str, Sequence[pathlib.Path]] | None = None
) -> Fields:
    """The fields of a pre-training, and of its fine-tunings.

    Args:
      folder: its run folder, whose files agree.
      tuned: task -> the folders of those of its fine-tunings whose scores count.
    """
    config, _ = run_files.read_json(folder / "config.json", [])
    result, _ = run_files.read_json(folder / "result.json", [])
    found = flatten({k: v for k, v in config.items() if k not in ("machine", "seed")})
    found |= {"data": run_files.data_hash(folder, result), "numerics": _numerics(folder)}
    found |= _of_tasks(tuned or {})
    return {name: value for name, value in found.items() if value is not None}


def of_finetuning(folder: pathlib.Path) -> Fields:
    """The fields of a fine-tuning that does not lie below its pre-training.

    With those of its net, and INIT: nothing else is known of what it began with.
    """
    config, _ = run_files.read_json(folder / "config.json", [])
    net = {k: v for k, v in mapping(config.get("net")).items() if k != "dropout_rate"}
    found = flatten({"net": net}) | {INIT: config.get("init")} | _adaptation(folder)
    return {name: value for name, value in found.items() if value is not None}


def departures(folder: pathlib.Path) -> frozenset[str]:
    """The fields in which a run's system declares that it differs from the control."""
    result, _ = run_files.read_json(folder / "result.json", [])
    held = [d for d in result.get("departures") or () if isinstance(d, Mapping)]
    return frozenset(str(departure.get("field")) for departure in held)


def _of_tasks(tuned: Mapping[str, Sequence[pathlib.Path]]) -> Fields:
    """A field that is alike everywhere has its value, another what each task has, as text."""
    by_task = {task: [_adaptation(seed) for seed in seeds] for task, seeds in tuned.items()}
    names = sorted({name for of in by_task.values() for one in of for name in one})
    found: Fields = {}
    for name in names:
        values = {task: _distinct(one.get(name) for one in of) for task, of in by_task.items()}
        everywhere = _distinct(value for of in values.values() for value in of)
        found[name] = everywhere[0] if len(everywhere) == 1 else repr(values)
    return found


def _adaptation(folder: pathlib.Path) -> Fields:
    """How a fine-tuning adapts a net; what its recipe's grid chose on dev is its own."""
    config, _ = run_files.read_json(folder / "config.json", [])
    result, _ = run_files.read_json(folder / "result.json", [])
    own = flatten({name: value for name, value in config.items() if name not in OWN})
    chosen = mapping(result.get("chosen"))
    found = {PREFIX + name: value for name, value in own.items() if name not in chosen}
    return found | {PREFIX + "numerics": _numerics(folder)}


def _numerics(folder: pathlib.Path) -> str:
    environment, _ = run_files.read_json(folder / "environment.json", [])
    return run_files.numerics_said(environment)


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
