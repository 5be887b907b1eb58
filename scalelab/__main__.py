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
from scalelab.helpers.names import CONFIGS, describe_version, module_names, nearest


class Program(NamedTuple):
    """A program: a module with `parser` and `main`, one line of help, the module's own command."""

    module: str
    help: str
    command: str = ""


SUITES = {  # programs of eval that are rows of eval/suites.py
    "pairs": "Your own minimal pairs.",
    "blimp": "BLiMP: minimal pairs in 12 phenomena.",
    "syntaxgym": "SyntaxGym: 34 suites of surprisals.",
    "copa": "COPA: the more plausible cause or effect.",
    "wsc": "WSC: what a pronoun stands for, by substitution.",
    "winogender": "Winogender: pronouns of occupations.",
    "lambada": "LAMBADA: the last word of a passage.",
    "lama": "LAMA: facts, asked as cloze sentences.",
    "prompts": "Tasks as text with a gap, after solved examples.",
    "crows_pairs": "CrowS-Pairs: preference of stereotypes.",
    "cats": "Commonsense Ability Tests: which sentence makes sense.",
    "agreement": "Agreement of subject and verb, three sets.",
}
PROGRAMS = {  # the name that a user types, perhaps of a group -> program
    "train": Program("train", "Pre-trains one system."),
    "study": Program("study", "Plans, runs and reports a comparison stated in one file."),
    "report": Program("study", "Writes tables, figures and report.html of a study.", "report"),
    "runs": Program("lab.runs", "Lists and compares runs; writes the card of a run."),
    "predict": Program("predict", "Applies a fine-tuned model to new text."),
    "sample": Program("sample", "Continues texts."),
    "fill-mask": Program("fill_mask", "Fills the masks of texts with a masked model."),
    "fit": Program("fit", "Says what a training step needs in memory, and the largest batch."),
    "shapes": Program("shapes", "Lists hardware-friendly shapes near a wanted one."),
    "hf": Program("interop.hf", "Imports and exports checkpoints of Hugging Face transformers."),
    "make-tasks": Program("tasks.self_supervised", "Makes two self-labeled tasks from a corpus."),
    "systems": Program(
        "catalog", "Lists systems, objectives, formats, tasks and evaluations with their options."
    ),
    "worlds": Program("worlds.__main__", "Writes a synthetic corpus and its tasks."),
    "eval glue": Program("eval.glue", "Fine-tunes one model on all nine GLUE tasks."),
    "eval tsv": Program("eval.tsv", "Fine-tunes on your own train.tsv and dev.tsv."),
    "eval compare": Program("eval.compare", "Are two systems different? Task by task."),
    "eval ensemble": Program("eval.ensemble", "Averages the predictions of several fine-tunings."),
    "eval lm": Program("eval.lm", "Loss, perplexity and bits per byte of documents."),
    "eval ngram": Program(
        "eval.ngram", "Counts n-grams in the text of a run and scores documents."
    ),
    "eval word_order": Program("eval.word_order", "Measures how much a model uses word order."),
    **{f"eval {name}": Program("eval.suites", text, name) for name, text in SUITES.items()},
    "eval babylm": Program("eval.babylm", "The zero-shot tasks of the BabyLM Challenge 2026."),
    "eval wordsim": Program("eval.wordsim", "Similarity of words, by their vectors."),
    "eval probes.pos": Program("eval.probes.pos", "Part of speech, from each layer's states."),
    "eval probes.dep": Program("eval.probes.dep", "Dependency relations, from states."),
    "eval probes.spans": Program("eval.probes.spans", "Kinds of chunks, from states."),
    "eval probes.distance": Program("eval.probes.distance", "Structural probe of syntax trees."),
    "eval probes.depth": Program("eval.probes.depth", "Structural probe of the depth of words."),
    "eval probes.heads": Program("eval.probes.heads", "Attention heads as dependency parsers."),
    "eval probes.tpdn": Program("eval.probes.tpdn", "Tensor product decomposition of vectors."),
    "data inspect": Program("data.inspect", "Shows a model's view of a corpus."),
    "data probes": Program("data.probes", "The old name of make-tasks."),
    "lab runs": Program("lab.runs", "Lists and compares runs; writes the card of a run."),
    "lab laws": Program("lab.laws", "Fits scaling laws to finished runs."),
    "lab compound": Program("lab.compound", "Finds the best shape of a size and scales it."),
    "lab signal_to_noise": Program(
        "lab.signal_to_noise", "Which score tells systems apart, and how early?"
    ),
}
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
        top = {name: own.help for name, own in PROGRAMS.items() if " " not in name}
        print(_table(top | GROUPS))
    elif name == "completion":
        _complete(rest)
    elif name in GROUPS:
        there = members(name)
        if not rest or rest[0] in ("-h", "--help"):
            lines = _table({name: own.help for name, own in there.items()})
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
        from scalelab.tasks.task import TASKS  # late: the other programs need no tasks

        for name, task in TASKS.items():
            found[name] = Program("eval.program", task.about.splitlines()[0], name)
    return dict(sorted(found.items()))


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
