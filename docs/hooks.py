"""The site's hooks for mkdocs: pages from elsewhere in the repository, pages from the code.

README.md is the start page. Other files keep their paths below repository/.
"""

import os
import pathlib
import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scalelab import __main__ as programs
from scalelab import catalog
from scalelab.config import fields, finetuning, pretraining
from scalelab.helpers import names
from scalelab.studies.spec import StudySpec

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHOWN = ("LOG.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/README.md", "zoo/README.md",
         "scalelab/systems/**/*.py",
         "results/*/reports/*/*.md", "results/*/reports/*/figures/*")  # fmt: skip
CONFIGS = {"Pre-training": pretraining.Config, "Fine-tuning": finetuning.FinetuneConfig,
           "Studies": StudySpec}  # fmt: skip
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds README.md, and the files of the repository that pages link to."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            name = f"repository/{path.relative_to(ROOT)}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for entry in _systems():
        name = f"reference/systems/{entry.name}.md"
        files.append(File.generated(config, name, content="\n".join(_system_page(entry))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links of a repository's file lead to the site's page; fills in what code says."""
    place = pathlib.Path(page.file.abs_src_path or ROOT / "docs" / page.file.src_uri).parent

    def lead(link: re.Match[str]) -> str:
        path = pathlib.Path(os.path.normpath(place / link[1])).relative_to(ROOT)
        target = f"repository/{path}"
        if path == pathlib.Path("README.md"):
            target = "index.md"
        elif path.is_relative_to("docs"):
            target = str(path.relative_to("docs"))
        return os.path.relpath(target, pathlib.Path(page.file.src_uri).parent)

    generated = {"<!-- config fields -->": _config_fields, "<!-- programs -->": _programs,
                 "<!-- systems -->": _system_list}  # fmt: skip
    for mark, make in generated.items():
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(make()))
    return LINK.sub(lead, markdown)


def _config_fields() -> Iterator[str]:
    for title, config_class in CONFIGS.items():
        yield f"## {title}\n\n```text\n{fields.describe(config_class)}\n```\n"


def _programs() -> Iterator[str]:
    """A heading and the description of each program."""
    tasks = {f"eval {name}": own for name, own in programs.members("eval").items()}
    for name, program in {**programs.PROGRAMS, **tasks}.items():
        text = str(programs.load_parser(program).description).rstrip()
        yield f"## scalelab {name}\n\n```text\n{text}\n```\n"


def _systems() -> list[catalog.Entry]:
    return [entry for entry in catalog.entries() if entry.kind == "system"]


def _system_list() -> Iterator[str]:
    """One row for each system, with a link to its page."""
    yield "| system | paper | predicts | sees | source |\n|---|---|---|---|---|"
    for entry in _systems():
        module, link = names.load_module("systems", entry.name), f"systems/{entry.name}.md"
        source = "yes" if module.HAS_SOURCE else "no"
        yield (f"| [`{entry.name}`]({link}) | {entry.description} | {module.PREDICTS or '-'} |"
               f" {module.SEES} | {source} |")  # fmt: skip


def _system_page(entry: catalog.Entry) -> Iterator[str]:
    """A system's docstring, options, peers, declared differences with sources, and modules."""
    module = names.load_module("systems", entry.name)
    file = pathlib.Path(str(module.__file__)).relative_to(ROOT)
    yield f"# {entry.name}\n"
    yield f"::: scalelab.systems.{entry.name}\n    options:\n      members: false\n"
    yield f"File: [`{file}`](../../../{file}). [All systems](../systems.md).\n"
    if entry.parity:
        yield f"Tests compare it with {', '.join(f'`{name}`' for name in entry.parity)}.\n"
    if entry.options:
        options = fields.describe(module.Options, "system_options.")
        yield f"## Options\n\n```text\n{options}\n```\n"
    yield "## Differences from the base config\n\n| field | value | source |\n|---|---|---|"
    for departure in module.DEPARTURES:
        yield f"| `{departure.field}` | `{departure.value}` | {departure.source} |"
    is_package = hasattr(module, "__path__")
    for name in names.module_names(f"systems.{entry.name}") if is_package else ():
        yield f"\n::: scalelab.systems.{entry.name}.{name}\n"
