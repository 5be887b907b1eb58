"""What is wrong with the files of an ended fine-tuning, in themselves and beside each other.

Its scores are those of its predictions, its clocks those of metrics.jsonl, how the net was adapted
and to what data stands in config.json. Where result.json says otherwise, one has been edited or cut
off, and neither is believed. Nothing else tells its remarks, the loss and the best step in training
and the memory.
"""

from collections.abc import Mapping
from typing import Any

from scalelab.config.fields import flatten
from scalelab.lab.reading import run_check, run_files
from scalelab.lab.reading.run_files import mapping
from scalelab.lab.reading.task_runs import SeedRun

REPEATED = ("task", "recipe", "mnli_first")  # beside what every run repeats (run_check)


def of_run(one: SeedRun) -> list[str]:
    """What is wrong with a fine-tuning that has ended; [] if nothing is."""
    problems: list[str] = []
    config, there = run_files.read_json(one.folder / "config.json", problems)
    environment, _ = run_files.read_json(one.folder / "environment.json", problems)
    lines = run_files.read_metrics(one.folder / "metrics.jsonl", problems)
    if not there:
        problems.append("config.json is missing")
    problems += run_check.of_environment(environment)
    return problems or [*of_config(one.result, config), *of_scores(one), *_of_clocks(one, lines)]


def of_config(result: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Where result.json says other things than config.json, as far as it says anything."""
    settings, data = mapping(result.get("settings")), mapping(result.get("data"))
    by_config = {**flatten(dict(config)), **mapping(config.get("optim")), **config}
    pairs = [(name, result[name], config.get(name)) for name in REPEATED if name in result]
    pairs += [(f"settings.{name}", v, by_config.get(name)) for name, v in settings.items()]
    pairs += [(f"data.{name}", data.get(name), digest)
              for name, digest in mapping(config.get("data")).items() if data]  # fmt: skip
    return run_check.of_config(config, result) + [
        f"{name} is {said!r} in result.json, {expected!r} by config.json"
        for name, said, expected in pairs if said != expected
    ]  # fmt: skip


def of_scores(one: SeedRun) -> list[str]:
    """Where its scores are not those of its predictions."""
    found = []
    for split in dict.fromkeys(name for name, _ in one.scores):
        try:
            one.predictions(split)
        except FileNotFoundError as error:
            name = str(error.filename).rpartition("/")[2]
            found.append(f"{name} is missing, so that nothing vouches for its scores")
        except (ValueError, OSError) as error:
            found.append(str(error).replace(f"{one.folder}/", ""))
    return found


def _of_clocks(one: SeedRun, lines: list[dict[str, Any]]) -> list[str]:
    """Where its clocks are not those of its last line; nothing, where there is none."""
    there = bool(lines) and one.finished and "steps" in one.result
    return run_check.of_clocks(one.result, lines[-1]) if there else []
