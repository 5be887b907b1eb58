"""The programs of scalelab: `scalelab PROGRAM ...` is `python -m scalelab.<module> ...`.

scalelab train --config=pretrain:system=bert,steps=500 --workdir=DIR
scalelab eval rte --init=RUN --workdir=DIR
eval "$(scalelab completion bash)"     completes names and flags; zsh likewise
"""

import ast
import pathlib
import re
import runpy
import sys
from collections.abc import Sequence

from scalelab.helpers.names import CONFIGS, describe_version, nearest

ROOT = pathlib.Path(__file__).parent
PROGRAMS = {  # name -> module, perhaps with the program's own command
    "train": "train",
    "study": "study",
    "report": "study report",
    "runs": "lab.runs",
    "predict": "predict",
    "sample": "sample",
    "fill-mask": "fill_mask",
    "fit": "fit",
    "shapes": "shapes",
    "hf": "interop.hf",
    "make-tasks": "tasks.self_supervised",
    "systems": "catalog",
    "worlds": "worlds.__main__",
}
GROUPS = {  # name -> its folder, what its programs contain, what they do
    "finetune": ("eval", r"^    program\.(run|program)\(", "Fine-tunes on a task."),
    "eval": ("eval", r"^if __name__ == ", "Fine-tunes on a task, measures a yardstick, compares."),
    "data": ("data", r"^if __name__ == ", "Shows a corpus as a model sees it."),
    "lab": ("lab", r"^if __name__ == ", "Fits laws, scales shapes, judges yardsticks."),
}
TASK = "eval.program"  # the module that runs the tasks of scalelab/tasks
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
SHELLS = {"bash": COMPLETION, "zsh": "autoload -U +X bashcompinit && bashcompinit" + COMPLETION}
FLAG = re.compile(r'DEFINE_\w+\(\s*"(\w+)"|add(?:_argument)?\(\s*"--(\w+)"')
# What a program contains that takes the flags of a module -> that module.
SHARED_FLAGS = {" program.": "eval.program", "(YARDSTICK": "eval.yardstick",
                "suites.program(": "eval.yardstick",
                "cli.run(": "config.cli"}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program that the command line names, with the rest as its arguments."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if "--version" in (name, *(rest[:1] if name in GROUPS else ())):
        print(describe_version())
    elif name in ("-h", "--help", "help"):
        print("scalelab PROGRAM [ARGUMENTS]; scalelab PROGRAM --help describes each.\n")
        print(_table({**PROGRAMS, **dict.fromkeys(GROUPS, "")}))
    elif name == "completion":
        _complete(rest)
    elif name in GROUPS:
        _run_member(name, rest)
    elif name == "population":  # removed; it says what took its place
        _run(name, rest)
    else:
        valid = [*PROGRAMS, *GROUPS, "completion"]
        module, *command = PROGRAMS[_choose(name.replace("_", "-"), valid, "program")].split()
        _run(module, [*command, *rest])


def members(group: str) -> dict[str, str]:
    """Returns the programs of a group: name -> module; tasks share the module TASK."""
    folder, mark, _ = GROUPS[group]
    paths = sorted((ROOT / folder).rglob("*.py"))
    found = [p for p in paths if re.search(mark, p.read_text(encoding="utf-8"), re.MULTILINE)]
    names = [".".join(p.relative_to(ROOT / folder).with_suffix("").parts) for p in found]
    tasks = dict.fromkeys(_tasks(), TASK) if folder == "eval" else {}
    return dict(sorted(({name: f"{folder}.{name}" for name in names} | tasks).items()))


def _tasks() -> dict[str, str]:
    """Returns the tasks: name -> description."""
    from scalelab.tasks.task import TASKS  # imported late: the other programs need no tasks

    return {name: task.about for name, task in TASKS.items()}


def _run_member(group: str, rest: Sequence[str]) -> None:
    there = members(group)
    if not rest or rest[0] in ("-h", "--help"):
        print(f"scalelab {group} NAME [ARGUMENTS]; {GROUPS[group][2]}\n\n{_table(there)}")
        sys.exit(0 if rest else 2)
    name = _choose(rest[0].replace("-", "_"), there, f"program of {group}")
    if there[name] != TASK:
        _run(there[name], rest[1:])
        return
    from scalelab.eval import program

    sys.argv[1:] = rest[1:]
    program.run(name)


def _choose(name: str, valid: Sequence[str] | dict[str, str], what: str) -> str:
    if name not in valid:
        print(f"error: unknown {what} {name!r}: {nearest(name, valid)}", file=sys.stderr)
        sys.exit(2)
    return name


def _run(module: str, arguments: Sequence[str]) -> None:
    """Runs a module as `python -m` does."""
    sys.argv[1:] = arguments
    runpy.run_module(f"scalelab.{module}", run_name="__main__", alter_sys=True)


def _table(programs: dict[str, str]) -> str:
    """Lists programs with the first line of their docstrings."""
    width = max(map(len, programs)) + 2
    lines = []
    for name, given in programs.items():
        module, _, command = given.partition(" ")
        text = describe(name, module) if module else GROUPS[name][2]
        described = re.search(rf"^{command}  +(.*)$", text, re.MULTILINE) if command else None
        lines.append(f"  {name:{width}}" + (described[1] if described else text.splitlines()[0]))
    return "\n".join(lines)


def describe(name: str, module: str) -> str:
    """Returns the help text of a program: a task's description, or the module's docstring."""
    return _tasks()[name] if module == TASK else _docstring(_source(module))


def _source(module: str) -> str:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _docstring(source: str) -> str:
    return ast.get_docstring(ast.parse(source), clean=False) or "\n"


def _complete(rest: Sequence[str]) -> None:
    """Prints a shell's completion script, or the words that may follow those given."""
    if rest[:1] != ["words"]:
        print(SHELLS[_choose(rest[0] if rest else "", SHELLS, "shell")])
        return
    name, *more = rest[1:] or [""]
    _, flag, value = "".join(more).rpartition("--config")
    if flag and "--" not in value and (not value or value[0] != "." and value[-1] in "=:,"):
        print(" ".join(_config_words(name, value)))
    elif name == "completion":
        print(" ".join(SHELLS))
    elif name in GROUPS and not more:
        print(" ".join(members(name)))
    elif name in PROGRAMS or name in GROUPS:
        found = (PROGRAMS.get(name) or members(name).get(more[0], "")).split()
        module, command = "".join(found[:1]), found[1:] or more * (name in PROGRAMS)
        source = _source(module) if module else ""
        commands = re.findall(rf"^  python -m scalelab\.{re.escape(module)} (\w+)", source, re.M)
        own = re.search(rf'^    "{"".join(command[:1])}": (\(".*\)),$', source, re.M)
        for mark, shared in SHARED_FLAGS.items():
            source += _source(shared) * (mark in source)
        flags = ast.literal_eval(own[1]) if own else {a or b for a, b in FLAG.findall(source)}
        shown = [f"--{flag}" for flag in sorted(flags)]
        print(" ".join([*dict.fromkeys(commands * (not command)), *shown, "--help"]))
    else:
        print(" ".join([*PROGRAMS, *GROUPS, "completion"]))


def _config_words(program: str, value: str) -> list[str]:
    """Returns the shipped configs, the arguments of a config, or the systems, by what is typed."""
    if ":" not in value:
        found = sorted(str(p.relative_to(CONFIGS).with_suffix("")) for p in CONFIGS.rglob("*.py"))
        return [name for name in found if name.startswith("studies/") == (program == "study")]
    if value[-1] == "=":
        systems = ROOT.glob("systems/[a-z]*.py") if value.endswith("system=") else ()
        return sorted(path.stem for path in systems)
    shared = {"study": "study", "eval": "finetune", "finetune": "finetune"}
    source = (CONFIGS / f"{shared.get(program, 'pretrain')}.py").read_text(encoding="utf-8")
    _, _, described = source.partition("\nArguments")
    return [f"{name}=" for name in re.findall(r"^  (\w+)  +", described.split("\n\n")[0], re.M)]


if __name__ == "__main__":
    main()
