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
from scalelab.config import fields, finetuning, pretraining
from scalelab.helpers import names
from scalelab.studies.spec import StudySpec

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHOWN = ("LOG.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/README.md", "zoo/README.md",
         "scalelab/systems/*.py",
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
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links of a repository's file lead to the site's page; fills in what code says."""
    place = pathlib.Path(str(page.file.abs_src_path)).parent

    def lead(link: re.Match[str]) -> str:
        path = pathlib.Path(os.path.normpath(place / link[1])).relative_to(ROOT)
        target = f"repository/{path}"
        if path == pathlib.Path("README.md"):
            target = "index.md"
        elif path.is_relative_to("docs"):
            target = str(path.relative_to("docs"))
        return os.path.relpath(target, pathlib.Path(page.file.src_uri).parent)

    generated = {"<!-- config fields -->": _config_fields, "<!-- programs -->": _programs,
                 "<!-- systems -->": _systems}  # fmt: skip
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


def _systems() -> Iterator[str]:
    """Each system's docstring, and its declared differences with their sources."""
    for name in names.module_names("systems"):
        yield f"::: scalelab.systems.{name}\n    options:\n      members: false\n"
        yield "| field | value | source |\n|---|---|---|"
        for departure in names.load_module("systems", name).DEPARTURES:
            yield f"| `{departure.field}` | `{departure.value}` | {departure.source} |"
        yield ""
