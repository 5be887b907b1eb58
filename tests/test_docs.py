"""The pages: their commands are those of the programs, and the site builds."""

import html
import itertools
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import parsed_commands
import pytest
import tiny

from scalelab.helpers.names import find_config, load_module, module_names

PAGES = [tiny.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "zoo/README.md",
                                       "results/README.md")]  # fmt: skip
PAGES += sorted(p for p in (tiny.ROOT / "docs").rglob("*.md") if "history" not in p.parts)
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"\n]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:python -m |scalelab |make |launch/)[^`]+)`")
FLAG = re.compile(r"(?<![\w-])--([a-z]\w+)(?:\.[\w.<>]+)?(?=[=`\s\]]|$)")
# Flags of argparse, and of the tables of flags and of evaluations' options.
DECLARED = re.compile(r'"--(\w+)"|"(\w+)": \(|^ +\("(\w+)", ', re.M)
ASSIGNED = re.compile(r"^(\w+)=(\S+)$")


def test_the_extras_that_pages_install_exist_and_a_notebook_has_one() -> None:
    setup = (tiny.ROOT / "setup.py").read_text().partition("extras_require=")[2]
    extras = set(re.findall(r'^        "(\w+)": ', setup, re.M))
    texts = [page.read_text() for page in PAGES]
    named = {name for text in texts for name in re.findall(r"'\.\[(\w+)\]'", text)}
    assert "datasets" in named <= extras
    lines = [line for text in texts for line in text.splitlines() if "jupyter execute" in line]
    assert lines and all("[notebook]" in line for line in lines)


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command in a page's blocks without a language, and in its prose."""
    variables = {}
    for block in FENCE.finditer(text):
        if block[1] not in ("", "bash"):
            continue
        for line in block[3].replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and (given := ASSIGNED.match(words[0])) and len(words) == 1:
                variables[f"${given[1]}"] = given[2]
            elif words:
                for name, value in variables.items():
                    words = [word.replace(name, value) for word in words]
                yield words
    for inline in INLINE.finditer(FENCE.sub("", text)):
        words = shlex.split(inline[1])
        ours = words[0] in ("python", "scalelab") and not any(w.startswith("--") for w in words)
        yield [*words, "--help"] if ours else words  # without its arguments it is a mere name


def module(words: list[str]) -> list[str] | None:
    """The module that a command runs, and its arguments; None: it is no program of ours."""
    if words[0] == "scalelab":
        return words
    if words[:2] == ["python", "-m"] and words[2].split(".")[0] in ("scalelab", "benchmarks"):
        return words[2:]
    if words[0] == "sbatch" or words[0].startswith("launch/"):
        script = next(i for i, word in enumerate(words) if word.startswith("launch/"))
        assert (tiny.ROOT / words[script]).is_file(), words
        if words[script] == "launch/one_gpu.sh":  # its words are placeholders
            return ["scalelab.study", "run", "--help"]
        dry = words[script + 1 :][:1] == ["--dry_run"]  # an option of the script
        flags = [word for word in words[script + 1 + dry :] if word.startswith("--")]
        asked = [*flags, "--config.machine.distributed=True"]  # as the scripts do
        return ["scalelab.train", *(asked if flags else ["--help"])]
    return None


def check_other(words: list[str]) -> None:
    """Checks a command of another program: what it names must be there."""
    match words:
        case ["make", target]:
            assert f"\n{target}: " in (tiny.ROOT / "Makefile").read_text(), words
        case ["pip", "install", package] if extra := re.search(r"\[(\w+)\]", package):
            assert f'"{extra[1]}": [' in (tiny.ROOT / "setup.py").read_text(), words
        case ["python", "-m", "pytest", *rest]:
            paths = [word for word in rest if "/" in word]
            assert paths and all((tiny.ROOT / path).exists() for path in paths), words
        case [".", ".venv/bin/activate"]:
            pass
        case _:
            pytest.fail(f"this test knows no such command: {words}")


def write_files(text: str, folder: pathlib.Path) -> None:
    """Writes the files that a page asks its reader to save."""
    for _, title, content in FENCE.findall(text):
        if title:
            (folder / title).parent.mkdir(exist_ok=True)
            (folder / title).write_text(content)


def parse(found: list[list[str]], folder: pathlib.Path) -> list[tuple[int, str]]:
    """The exit code and the errors of each command, parsed by its program and not run."""
    env = os.environ | {"PYTHONPATH": str(tiny.ROOT), "HOME": str(folder)}
    for name in ("quickstart", "grammar-20000-10000"):  # not written now
        (folder / ".cache/scalelab/worlds" / name).mkdir(parents=True)
    made = parsed_commands.answers(found, cwd=folder, env=env)
    return [(code, errors[-500:]) for code, _, errors in made]


@pytest.mark.ci
def test_programs_know_the_commands_of_the_pages(tmp_path: pathlib.Path) -> None:
    """Flags, config files, studies and fields, by the programs' own parsers."""
    found = []
    for page in PAGES:
        text = page.read_text()
        write_files(text, tmp_path)
        for words in commands(text):
            if (ours := module(words)) is None:
                check_other(words)
            elif "..." not in words:
                found.append((page.name, ours))
    assert len(found) > 100
    wrong = [["scalelab", "train", "--workdri=x"], ["scalelab", "study", "plan", "--config=studys"],
             ["scalelab.train", "--config=pretrain:system=brt"], ["scalelab", "eval", "rt"],
             ["scalelab", "eval", "lm", "--rnu=x"],
             ["scalelab.train", "--config=pretrain", "--config.optim.rate=1"]]  # fmt: skip
    answers = parse([*(words for _, words in found), *wrong], tmp_path)
    assert all(code for code, _ in answers[len(found) :])
    failed = [(page, shlex.join(words), errors) for (page, words), (code, errors)
              in zip(found, answers, strict=False) if code]  # fmt: skip
    assert not failed, "\n".join(map(str, failed))


@pytest.mark.ci
def test_flags_and_configs_in_prose_exist() -> None:
    files = [*(tiny.ROOT / "scalelab").rglob("*.py"), *(tiny.ROOT / "launch").glob("*.*")]
    sources = "".join(p.read_text() for p in files)
    known = {name for names in DECLARED.findall(sources) for name in names} | {"config", "help"}
    for page in PAGES:
        prose = FENCE.sub("", page.read_text())
        for code in re.findall(r"`([^`\n]+)`", prose):
            # Whole commands of benchmarks are parsed above.
            others = code.startswith(("XLA_FLAGS", "python -m benchmarks"))
            flags = set() if others else set(FLAG.findall(code))
            assert flags <= known, (page, flags - known)
            if re.fullmatch(r"configs/[\w/]+\.py", code):
                find_config(code)
            if re.fullmatch(r"(scalelab|tests|benchmarks)/[a-z_\d/]+\.py", code):
                assert (tiny.ROOT / code).exists(), (page, code)


@pytest.mark.ci
def test_the_site_builds(tmp_path: pathlib.Path) -> None:
    """Strictly: every link and every anchor leads somewhere, every docstring is understood."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={tmp_path}"],
        cwd=tiny.ROOT, capture_output=True, text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(tiny.ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "reference/config/index.html").read_text()
    assert "optim.learning_rate" in page
    page = (tmp_path / "reference/systems/index.html").read_text()
    assert "scalelab.systems.System" in page
    for name in module_names("systems"):  # each has a page, which the list leads to
        assert f'href="{name}/"' in page
        own = (tmp_path / f"reference/systems/{name}/index.html").read_text()
        assert f"scalelab.systems.{name}" in own
        departures = load_module("systems", name).DEPARTURES
        assert all(html.escape(x.source, quote=False) in own for x in departures), name


@pytest.mark.ci
def test_pages_are_short() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in PAGES}
    assert lengths[tiny.ROOT / "README.md"] <= 150
    tutorials = itertools.filterfalse(lambda p: p.parent.name != "tutorials", PAGES)
    assert all(lengths[page] <= 60 for page in tutorials), lengths
