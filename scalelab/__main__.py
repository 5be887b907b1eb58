"""The programs of scalelab: `scalelab PROGRAM ...` is `python -m scalelab.<module> ...`.

scalelab train --config=pretrain:system=bert,steps=500 --workdir=DIR
scalelab eval rte --init=RUN --workdir=DIR
eval "$(scalelab completion bash)"     completes names and flags; zsh likewise
"""

import importlib
import re
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple

from scalelab.config import cli, exits
from scalelab.eval.names import EVALUATIONS
from scalelab.helpers.names import CONFIGS, PACKAGE, describe_version, module_names, nearest


class Program(NamedTuple):
    """A program: a module with `parser` and `main`, and the module's own command."""

    module: str
    command: str = ""


EVAL_PROGRAMS = (  # programs of eval beside the tasks and the rows of eval/names.py
    "glue", "tsv", "compare", "ensemble", "lm", "ngram", "word_order",
)  # fmt: skip
PROGRAMS = {  # the name that a user types, perhaps of a group -> program
    "train": Program("train"),
    "study": Program("study"),
    "report": Program("study", "report"),
    "runs": Program("lab.runs"),
    "predict": Program("predict"),
    "sample": Program("sample"),
    "fill-mask": Program("fill_mask"),
    "fit": Program("fit"),
    "shapes": Program("shapes"),
    "hf": Program("interop.hf"),
    "make-tasks": Program("tasks.self_supervised"),
    "systems": Program("catalog"),
    "worlds": Program("worlds.__main__"),
    **{f"eval {name}": Program(f"eval.{name}") for name in EVAL_PROGRAMS},
    **{f"eval {name}": Program("eval.suites", name) for name in EVALUATIONS},
    **{f"data {name}": Program(f"data.{name}") for name in ("inspect", "probes")},
    **{f"lab {name}": Program(f"lab.{name}")
       for name in ("runs", "laws", "compound", "signal_to_noise")},
}  # fmt: skip
GROUPS = {
    "finetune": "Fine-tunes on a task.",
    "eval": "Fine-tunes on a task, measures an evaluation, compares.",
    "data": "Shows a corpus as a model sees it.",
    "lab": "Fits laws, scales shapes, judges evaluations.",
}
OWN_TASKS = ("glue", "tsv")  # programs of the group finetune beside the tasks
COMPLETION = """
_scalelab() {
  local word="${COMP_WORDS[COMP_CWORD]}" words
  local rest="${word##*[=:,]}"
  local begun="${word%"$rest"}"  # bash makes = and : words of their own, zsh does not
  words=$(scalelab completion words "${COMP_WORDS[@]:1:COMP_CWORD-1}" ${begun:+"$begun"})
  [[ $begun != [=:] ]] || begun=""
  COMPREPLY=($(compgen -P "$begun" -W "$words" -- "$rest"))
}
complete -o default -o nospace -F _scalelab scalelab
"""
RENAMED = {"yardsticks": "signal_to_noise"}  # programs of the release before -> of today
SHELLS = {"bash": COMPLETION, "zsh": "autoload -U +X bashcompinit && bashcompinit" + COMPLETION}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program that the command line names, with the rest as its arguments."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = name.replace("_", "-")
    if "--version" in (name, *(rest[:1] if name in GROUPS else ())):
        print(describe_version())
    elif name in ("-h", "--help", "help"):
        print("scalelab PROGRAM [ARGUMENTS]; scalelab PROGRAM --help describes each.\n")
        top = {name: describe(own) for name, own in PROGRAMS.items() if " " not in name}
        print(_table(top | GROUPS))
    elif name == "completion":
        _complete(rest)
    elif name in GROUPS:
        there = members(name)
        if not rest or rest[0] in ("-h", "--help"):
            lines = _table({name: describe(own) for name, own in there.items()})
            print(f"scalelab {name} NAME [ARGUMENTS]; {GROUPS[name]}\n\n{lines}")
            sys.exit(0 if rest else exits.FAILED)
        word = rest[0].replace("-", "_")
        if word in RENAMED:
            print(f"warning: {name} {word} is now {name} {RENAMED[word]}", file=sys.stderr)
        own = _choose(RENAMED.get(word, word), there, f"program of {name}")
        _run(there[own], rest[1:])
    else:
        _run(PROGRAMS[_choose(name, _top_names(), "program")], rest)


def members(group: str) -> dict[str, Program]:
    """Returns the programs of a group by name; every task is one of eval and of finetune."""
    found = {name.partition(" ")[2]: own for name, own in PROGRAMS.items()
             if name.startswith(f"{'eval' if group == 'finetune' else group} ")}  # fmt: skip
    if group == "finetune":
        found = {name: found[name] for name in OWN_TASKS}
    if group in ("eval", "finetune"):
        from scalelab.tasks.task import task_names  # late: the other programs need no tasks

        found |= {name: Program("eval.program", name) for name in task_names()}
    return dict(sorted(found.items()))


def describe(program: Program) -> str:
    """Returns one line on a program, from the docstring of its module, which is not imported."""
    if program.module == "eval.program":
        from scalelab.tasks.task import TASKS

        return TASKS[program.command].about.splitlines()[0]
    if program.command == "report":
        return "Writes tables, figures and report.html of a study."
    if program.module == "eval.suites":
        return EVALUATIONS[program.command][2]
    source = (PACKAGE / f"{program.module.replace('.', '/')}.py").read_text(encoding="utf-8")
    return source.removeprefix('"""').partition("\n")[0].removesuffix('"""')


def _top_names() -> list[str]:
    return [*(name for name in PROGRAMS if " " not in name), *GROUPS, "completion"]


def _choose(name: str, valid: Collection[str], what: str) -> str:
    if name not in valid:
        exits.fail(f"unknown {what} {name!r}: {nearest(name, valid)}")
    return name


def load_parser(program: Program) -> cli.Parser:
    """Imports a program and returns its command line, or that of its command."""
    made = importlib.import_module(f"scalelab.{program.module}").parser()
    return made.commands.get(program.command, made)


def _run(program: Program, arguments: Sequence[str]) -> None:
    module = importlib.import_module(f"scalelab.{program.module}")
    command = [program.command] if program.command else []
    cli.run(module.main, module.parser(), [*command, *arguments])


def _table(programs: dict[str, str]) -> str:
    width = max(map(len, programs)) + 2
    return "\n".join(f"  {name:{width}}{text}" for name, text in programs.items())


def _complete(rest: Sequence[str]) -> None:
    """Prints a shell's completion script, or the words that may follow those given."""
    if rest[:1] != ["words"]:
        print(SHELLS[_choose(rest[0] if rest else "", SHELLS, "shell")])
        return
    name, *more = rest[1:] or [""]
    _, flag, value = "".join(more).rpartition("--config")
    if flag and "--" not in value and (not value or value[0] != "." and value[-1] in "=:,"):
        words = _config_words(name, value)
    elif name == "completion":
        words = [*SHELLS]
    elif name in GROUPS and not more:
        words = [*members(name)]
    elif name in GROUPS:
        words = _program_words(members(name).get(more[0]), more[1:])
    else:
        words = _program_words(PROGRAMS.get(name), more) or _top_names()
    print(" ".join(words))


def _program_words(program: Program | None, typed: Sequence[str]) -> list[str]:
    """Returns the commands of a program, or its flags and those of the command that is typed."""
    if program is None:
        return []
    parser = load_parser(program)
    used = parser.commands.get("".join(typed[:1]) or str(parser.default_command), parser)
    commands = [] if typed else [*parser.commands]
    return [*commands, *used.flags()]


def _config_words(program: str, value: str) -> list[str]:
    """Returns the shipped configs, the arguments of a config, or the systems, by what is typed."""
    if ":" not in value:
        found = sorted(str(p.relative_to(CONFIGS).with_suffix("")) for p in CONFIGS.rglob("*.py"))
        return [name for name in found if name.startswith("studies/") == (program == "study")]
    if value[-1] == "=":
        return module_names("systems") if value.endswith("system=") else []
    shared = {"study": "study", "eval": "finetune", "finetune": "finetune"}
    source = (CONFIGS / f"{shared.get(program, 'pretrain')}.py").read_text(encoding="utf-8")
    _, _, described = source.partition("\nArguments")
    return [f"{name}=" for name in re.findall(r"^  (\w+)  +", described.split("\n\n")[0], re.M)]


if __name__ == "__main__":
    main()
