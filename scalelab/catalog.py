"""Lists systems, objectives, formats, tasks and evaluations with their options.

  python -m scalelab.catalog ['electra*'] [--json]

The description is the first line of a module's docstring. An option is set by
--config.system_options.NAME=VALUE, objective_options or format_options; an evaluation's by its
program's --NAME=VALUE. For a system or an objective, `parity` names the classes of Hugging Face
transformers that the tests compare it with, if there are any.
"""

import argparse
import dataclasses
import fnmatch
import importlib
import json
import types
from collections.abc import Iterator
from typing import Any

from scalelab.config import cli
from scalelab.helpers import names

PACKAGES = ("systems", "objectives", "formats")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A named part of the laboratory."""

    kind: str  # "system", "objective", "format", "task", "evaluation"
    name: str
    description: str
    options: dict[str, Any]  # name -> default
    meanings: dict[str, str]  # name -> the comment beside an option, where there is one
    parity: list[str]  # classes of transformers that tests compare it with; [] if there are none


def entries() -> Iterator[Entry]:
    """Yields everything that a config or a study may name, in the order of the packages."""
    from scalelab.config.fields import comments
    from scalelab.eval import evaluation
    from scalelab.eval.names import EVALUATIONS
    from scalelab.tasks.task import TASKS

    peers = [
        names.load_module("interop.maps", name).MAP for name in names.module_names("interop.maps")
    ]
    for package in PACKAGES:
        for name in names.module_names(package):
            module = names.load_module(package, name)
            kind = getattr(module, "Options", None)
            options = {x.name: x.default for x in dataclasses.fields(kind)} if kind else {}
            meanings = comments(kind) if kind else {}
            rows = [(p.system, a) for p in peers for a in p.architectures]
            classes = [a.name for system, a in rows if name in (system, *a.heads)]
            parity = list(dict.fromkeys(classes)) if package != "formats" else []
            yield Entry(package[:-1], name, _describe(module), options, meanings, parity)
    for name, task in sorted(TASKS.items()):
        yield Entry("task", name, task.about.splitlines()[0], {}, {}, [])
    for name in EVALUATIONS:
        module = importlib.import_module(f"scalelab.eval.{name}")
        given = evaluation.load(name).options.items()
        options, meanings = {k: d for k, (d, _) in given}, {k: text for k, (_, text) in given}
        yield Entry("evaluation", name, _describe(module), options, meanings, [])


def table(found: list[Entry]) -> str:
    """Formats entries for a terminal: one a line, with options and parity below."""
    lines, width = [], max(len(entry.name) for entry in found) + 2
    for place, entry in enumerate(found):
        if not place or found[place - 1].kind != entry.kind:
            lines += ["", f"{entry.kind}s"]
        lines.append(f"  {entry.name:{width}}{entry.description}")
        for name, default in entry.options.items():
            left = f"{name} = {default}"
            lines.append(f"  {'':{width}}  {left:24}  {entry.meanings.get(name, '')}".rstrip())
        if entry.parity:
            lines.append(f"  {'':{width}}  parity: {', '.join(entry.parity)}")
    return "\n".join(lines[1:])


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.catalog", __doc__)
    made.add_argument("pattern", nargs="?", default="*", help="names to list, such as 'electra*'")
    made.add_argument("--json", action="store_true", help="print one JSON object a line")
    return made


def main(given: argparse.Namespace) -> None:
    """Prints the entries whose names fit; raises ValueError if none does."""
    known = list(entries())
    found = [entry for entry in known if fnmatch.fnmatchcase(entry.name, given.pattern)]
    if not found:
        valid = {entry.name for entry in known}
        raise ValueError(
            f"no name is like {given.pattern!r}: {names.nearest(given.pattern, valid)}"
        )
    as_json = [json.dumps(dataclasses.asdict(entry)) for entry in found]
    print("\n".join(as_json) if given.json else table(found))


def _describe(module: types.ModuleType) -> str:
    return (module.__doc__ or "").splitlines()[0]


if __name__ == "__main__":
    cli.run(main, parser())
