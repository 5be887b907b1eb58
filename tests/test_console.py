"""`scalelab PROGRAM`: a table of the programs, each of which is a module."""

import importlib
import pathlib
import shlex
import subprocess
import sys

import parsed_commands
import pytest
import tiny

from scalelab import __main__ as programs
from scalelab.config import cli
from scalelab.helpers import names
from scalelab.tasks.task import task_names


def ends(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `scalelab ARGUMENTS`."""
    code = 0
    try:
        programs.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


def test_every_program_is_a_module_and_every_task_a_program(capsys) -> None:
    there = {group: programs.members(group) for group in programs.GROUPS}
    assert {*task_names(), "glue", "tsv"} == there["finetune"].keys() < there["eval"].keys()
    listed = {*programs.PROGRAMS.values(), *(p for own in there.values() for p in own.values())}
    for module in {own.module for own in listed}:
        found = importlib.import_module(f"scalelab.{module}")
        parser = found.parser()
        assert isinstance(parser, cli.Parser) and callable(found.main), module
        assert all(own.command in ("", *parser.commands) for own in listed if own.module == module)
    written = {
        str(path.relative_to(names.PACKAGE).with_suffix("")).replace("/", ".")
        for path in names.PACKAGE.rglob("*.py") if "cli.run(main, parser())" in path.read_text()
    }  # fmt: skip
    assert written == {own.module for own in listed} - {"eval.program", "eval.suites"} | {
        "studies.jobs"
    }
    code, out, _ = ends(capsys)
    top = [name for name in programs.PROGRAMS if " " not in name]
    assert code == 0 and all(f"  {name} " in out for name in (*top, *there))


@pytest.mark.parametrize(("arguments", "message"), [
    (["trian"], "'train'"),
    (["eval", "rt"], "'rte'"),
    (["finetune", "blimp"], "blimp"),  # nothing is trained there
    (["completion", "fish"], "bash"),
])  # fmt: skip
def test_unknown_programs(arguments: list[str], message: str, capsys) -> None:
    code, out, errors = ends(capsys, *arguments)
    assert code == 2 and message in errors and not out


def test_a_program_runs_as_its_module_does() -> None:
    both = {
        "fill-mask": "fill_mask", "report": "study report",
        "eval word-order -h": "eval.word_order -h", "train --wrkdir=x": "train --wrkdir=x",
    }  # fmt: skip
    groups = "eval", "data"  # run as packages, they list their programs
    found = parsed_commands.answers(
        [f"scalelab {program}".split() for program in both]
        + [f"scalelab.{module}".split() for module in (*both.values(), *groups)],
        run=True,
    )
    assert found[:4] == found[4:8]
    assert all(out or errors for _, out, errors in found)
    assert [code for code, *_ in found[4:]] == [2, 2, 0, 2, 2, 2]
    for group, (_, out, _) in zip(groups, found[8:], strict=True):
        assert all(f"  {name} " in out for name in programs.members(group))


def test_a_group_has_a_version(capsys) -> None:
    assert ends(capsys, "eval", "--version")[1] == ends(capsys, "--version")[1]


def test_words_that_complete(capsys) -> None:
    def words(*given: str) -> set[str]:
        return {*ends(capsys, "completion", "words", *given)[1].split()}

    assert words() >= {"train", "eval"} and words("eval") >= {"rte", "blimp"}
    assert words("study") >= {"plan", "run"} and words("study", "run") >= {"--workers", "--config"}
    assert words("report") == words("study", "report") == {
        "--comparison", "--help", "--study", "--to", "--version", "--workdir",
    }  # fmt: skip
    assert words("completion") == {"bash", "zsh"}
    assert words("eval", "rte") >= {"--init", "--data"} and "--prompt" in words("sample")
    assert "complete " in ends(capsys, "completion", "bash")[1]


@pytest.mark.parametrize(("typed", "completed"), [
    (["--config", "=", "pre"], {"pretrain"}),  # the words of bash
    (["--config=pre"], {"--config=pretrain"}),  # as zsh asks
    (["--config", "=", "pretrain", ":", "system", "=", "bert,se"], {"bert,seed="}),
    (["--config", "=", "pretrain", ":", "system", "=", "alb"], {"albert"}),
    (["--config", "=", "pretrain", "--in"], {"--init"}),
])  # fmt: skip
def test_a_config_completes_in_the_shell(typed: list[str], completed: set[str]) -> None:
    words = shlex.join(["scalelab", "train", *typed])
    script = f'scalelab() {{ "{sys.executable}" -m scalelab "$@"; }}\n{programs.SHELLS["bash"]}'
    script += f"COMP_WORDS=({words}); COMP_CWORD={len(typed) + 1}; _scalelab; "
    done = subprocess.run(
        ["bash", "-c", script + 'echo "${COMPREPLY[@]}"'], cwd=tiny.ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert {*done.stdout.split()} == completed


def test_config_files_by_path_and_by_name(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    family = tiny.ROOT / "configs/studies/family.py"
    for name in ("studies/family", "configs/studies/family.py", str(family)):
        assert names.find_config(name) == family
    (tmp_path / "pretrain").write_text("")
    assert names.find_config("pretrain") == pathlib.Path("pretrain")
    for name in ("pretrian", "configs/pretrian.py"):
        with pytest.raises(ValueError, match="'pretrain'"):
            names.find_config(name)
