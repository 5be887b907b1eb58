"""The files of a run, read while it may be writing them, and whatever state they are in."""

import dataclasses
import fcntl
import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

SEED = re.compile(r"seed\d+")
UNKNOWN = "not recorded"
OF_VALIDATION = ("step", "tokens", "flops", "seconds", "eval/loss", "eval/max_len")


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A run, finished or not.

    Attributes:
      folder: its run folder.
      config: the content of config.json.
      result: that of result.json; None until the run is finished.
      environment: that of environment.json.
      lines: those of metrics.jsonl.
    """

    folder: pathlib.Path
    config: dict[str, Any]
    result: dict[str, Any] | None
    environment: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """What it is: "bert 2x128x2 seed 0", and the task it was fine-tuned on."""
        net, task = self.config.get("net") or {}, self.config.get("task")
        shape = "x".join(str(net.get(n, "?")) for n in ("num_heads", "width", "num_layers"))
        on = f" on {task}" if task else ""
        return f"{self.config['system']} {shape}{on} seed {self.config.get('seed')}"

    @property
    def last(self) -> dict[str, Any]:
        """The last line of metrics.jsonl; {} if there is none."""
        return self.lines[-1] if self.lines else {}

    @property
    def data_hash(self) -> str | None:
        """Digest of a pre-training's corpus; None if it is not known yet."""
        return data_hash(self.folder, self.result or {})

    @property
    def numerics(self) -> tuple[int, ...]:
        """Versions of the numbers that its starts had, oldest first; () if not recorded."""
        return numerics(self.environment)


def numerics(environment: Mapping[str, Any]) -> tuple[int, ...]:
    """Versions of the numbers of all starts in an environment.json; see `Run.numerics`."""
    versions = [start.get("numerics") for start in _starts(environment)]
    return tuple(dict.fromkeys(v for v in versions if isinstance(v, int)))


def numerics_said(environment: Mapping[str, Any]) -> str:
    """Versions of the numbers of all starts in words: "1", "1 and 2", "1 and not recorded"."""
    versions = dict.fromkeys(str(s.get("numerics")) for s in _starts(environment))
    return " and ".join(UNKNOWN if version == "None" else version for version in versions)


def _starts(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A run's starts, oldest first; those that are damaged tell nothing."""
    earlier = environment.get("earlier_starts")
    return [*map(mapping, earlier if isinstance(earlier, list) else []), environment]


def machine(environment: Mapping[str, Any]) -> str:
    """What a run was trained on, by its environment.json: "2 CPUs, cpu:cpu", or "unknown"."""
    try:
        return f"{environment['cpus']} CPUs, {', '.join(environment['devices'])}"
    except (KeyError, TypeError):
        return "unknown"


def open_run(folder: pathlib.Path) -> Run:
    """Opens a run.

    Raises:
      ValueError: there is none, or one of its files is damaged.
    """
    problems: list[str] = []
    config, there = read_json(folder / "config.json", problems)
    if not there:
        raise ValueError(f"{folder} holds no run: there is no {folder / 'config.json'}")
    result, finished = read_json(folder / "result.json", problems)
    environment, _ = read_json(folder / "environment.json", problems)
    lines = read_metrics(folder / "metrics.jsonl", problems)
    if "system" not in config:
        problems.append("config.json names no system")
    if problems:
        raise ValueError(f"{folder} is damaged: {'; '.join(problems)}")
    return Run(folder, config, result if finished else None, environment, lines)


def read_json(path: pathlib.Path, problems: list[str]) -> tuple[dict[str, Any], bool]:
    """Reads a file of fields.

    Args:
      path: the file.
      problems: takes what is wrong with it.

    Returns:
      Its content, {} if it is missing or damaged, and whether it is there.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}, False
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror}")
        return {}, True
    except (ValueError, RecursionError) as error:
        problems.append(f"{path.name} is no json: {' '.join(str(error).split())}")
        return {}, True
    if not isinstance(value, dict):
        problems.append(f"{path.name} holds {type(value).__name__}, not fields")
        return {}, True
    return value, True


def read_metrics(path: pathlib.Path, problems: list[str]) -> list[dict[str, Any]]:
    """Reads metrics.jsonl while it may be being written.

    Args:
      path: the file; one that is missing is empty.
      problems: takes what is wrong with it.

    Returns:
      Its lines, without the last one if that is not whole, and none behind a damaged one.
    """
    text, found = "", []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror}")
    lines = [line for line in text.split("\n") if line]
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not is_number(row["step"]):
                raise ValueError("the step is no number")
            found.append(row)
        except (ValueError, KeyError, TypeError, RecursionError):
            if number < len(lines):
                problems.append(f"{path.name}:{number} is damaged")
                break
    return found


def validations(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a validation, each with a loss, a length and all clocks."""
    return [line for line in lines if all(is_finite(line.get(name)) for name in OF_VALIDATION)]


def is_locked(folder: pathlib.Path) -> bool:
    """Whether a process trains there now: a seed of a fine-tuning is locked with its task's folder.

    A shared lock is tried, for as long as it takes to give it back, which `run_folder.locked`
    outwaits; where files cannot be locked, nobody does.
    """
    places = [folder, folder.parent] if SEED.fullmatch(folder.name) else [folder]
    for place in places:
        try:
            with (place / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


def data_hash(folder: pathlib.Path, result: Mapping[str, Any]) -> str | None:
    """Digest of a pre-training's corpus: its result's or, before there is one, its tokenizer's."""
    return str(result["data_hash"]) if result.get("data_hash") else manifest_hash(folder)


def manifest_hash(folder: pathlib.Path) -> str | None:
    """Digest of the corpus in the manifest of a run's tokenizer; None where there is none."""
    value, _ = read_json(folder / "tokenizer/manifest.json", [])
    for key in ("key", "text", "corpus"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def loss_of(evals: Mapping[str, Any]) -> float | None:
    """The loss at the longest length of the validations in result.json."""
    lengths = [length for length in evals if length.isdecimal()]
    last = evals[max(lengths, key=int)] if lengths else None
    loss = last.get("loss") if isinstance(last, Mapping) else None
    return loss if is_number(loss) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The fields that json gave; none, where it gave something else."""
    return value if isinstance(value, Mapping) else {}


def is_finite(value: Any) -> bool:
    """Whether it is a number, neither infinite nor NaN, which json writes too."""
    return is_number(value) and math.isfinite(value)


def is_number(value: Any) -> bool:
    """Whether json gave a number: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
