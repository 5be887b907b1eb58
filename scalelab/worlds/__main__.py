"""Writes a synthetic corpus: texts, their entropies, gold annotations, tasks.

  python -m scalelab.worlds --kind=grammar --to=DIR --documents=2000

DIR gets wiki.{train,valid,test}.raw for corpus=wikitext:DIR, and world.json with the
entropies in nats. With --kind=grammar it also gets gold.jsonl (tags, chunks, phrases, trees and
agreement of every sentence), minimal pairs for python -m scalelab.eval.pairs --data=DIR/pairs,
pairs of words for python -m scalelab.eval.wordsim --data=DIR/wordsim, scored 1 for the same topic
plus 1 for the same class, and glue/, nine tasks for python -m scalelab.eval.glue --data=DIR/glue.
A task has --tasks_examples training examples and a quarter of this number in dev and in test; 0
means no tasks. --questions adds so many training questions on passages, whose answers are spans,
for python -m scalelab.eval squad --data=DIR/glue.
With --kind=cipher every second document is in a second language, with other words
and another order; tasks/ has translations into it and summaries of passages, for python -m
scalelab.eval cipher and summary, with --data=DIR/tasks. With --kind=markov the next word depends on
the --order words before it. With --kind=neighbours there are --num_letters free words and the same
number of words that are functions of their neighbors. With --kind=copies there are --num_letters
free words, each followed by its partner; a free word repeats the word --lag words before it in
--percent_copied percent of the cases. With --kind=sequences words are random; tasks/ has pairs of
associative recall (--num_pairs keys with their values), copies and reversed texts (--shortest to
--longest words), for python -m scalelab.eval recall, copy and reverse, with --data=DIR/tasks.
--length is the number of words of a document. Equal arguments give equal files.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from scalelab.config import cli
from scalelab.worlds import (
    cipher,
    corpus,
    discourse,
    glue_files,
    markov,
    neighbours,
    pairs,
    questions,
)
from scalelab.worlds.copies import Copies
from scalelab.worlds.lexicon import Sizes
from scalelab.worlds.sequences import TASKS, Sequences, draw_tasks

SIZES = {name: getattr(Sizes, name) for name in ("num_topics", "num_nouns", "num_verbs",
                                                 "num_adjectives")}  # fmt: skip
KINDS = {  # kind -> its own arguments, with their defaults
    "grammar": {"tasks_examples": 1000, "questions": 0} | SIZES,
    "cipher": {"tasks_examples": 1000} | SIZES,
    "markov": {"vocab_size": 16, "order": 2, "length": 64},
    "neighbours": {"num_letters": 8, "length": 63},
    "copies": {"num_letters": 16, "lag": 40, "percent_copied": 90, "length": 320},
    "sequences": {"tasks_examples": 1000, "num_letters": 32, "num_pairs": 8, "shortest": 5,
                  "longest": 60, "length": 64},
}  # fmt: skip


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser(
        "python -m scalelab.worlds", __doc__,
        when_interrupted="remove what was written and start the same command again",
    )  # fmt: skip
    made.add_argument("--kind", required=True, choices=list(KINDS), help="of corpus")
    made.add_argument("--to", required=True, type=Path, help="folder to make; absent or empty")
    made.add_argument("--documents", required=True, type=int, help="of the training split")
    made.add_argument("--seed", type=int, default=0, help="of everything (0)")
    for name in dict.fromkeys(name for own in KINDS.values() for name in own):
        defaults = ", ".join(f"{kind}: {own[name]}" for kind, own in KINDS.items() if name in own)
        made.add_argument(f"--{name}", type=int, metavar="N", help=f"defaults: {defaults}")
    return made


def write(given: argparse.Namespace) -> dict[str, Any]:
    """Writes a corpus and returns the content of world.json.

    Raises:
      ValueError: the arguments are not valid, or the folder is not empty.
      OSError: it cannot be written.
    """
    asked = {name: value for name, value in vars(given).items() if value is not None}
    own = {name: asked.pop(name, default) for name, default in KINDS[given.kind].items()}
    if other := asked.keys() - {"kind", "to", "documents", "seed"}:
        raise ValueError(
            f"--{min(other)} is not an argument of --kind={given.kind}, which has"
            f" {', '.join('--' + name for name in own)}"
        )
    if given.documents < 1 or min([given.seed, *own.values()]) < 0:
        raise ValueError("expected 1 or more documents, and no negative number")
    folder, count = given.to, given.documents
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--to={folder}: expected a new or empty folder; this one is not empty")
    facts: dict[str, Any] = {"kind": given.kind, "seed": given.seed} | own
    if given.kind == "grammar":
        num_examples, num_questions = own.pop("tasks_examples"), own.pop("questions")
        world = discourse.draw(Sizes(**own), given.seed)
        facts |= world.facts()
        # First, because the lexicon may be too small.
        asked = questions.make(world, given.seed, num_questions) if num_questions else {}
        folder.mkdir(parents=True, exist_ok=True)
        if num_examples:
            facts["tasks"] = glue_files.write(world, given.seed, num_examples, folder / "glue")
        if asked:
            written = questions.write(asked, folder / "glue")
            facts.setdefault("tasks", {})[questions.FOLDER] = written
        facts["documents"] = corpus.write_grammar(world, given.seed, count, folder)
    elif given.kind == "cipher":
        num_pairs = own.pop("tasks_examples")
        world = discourse.draw(Sizes(**own), given.seed)
        folder.mkdir(parents=True, exist_ok=True)
        facts |= world.facts() | cipher.write(world, given.seed, count, num_pairs, folder)
    else:
        length, num_pairs, tasks = own.pop("length"), own.pop("tasks_examples", 0), {}
        if given.kind == "copies":
            source = Copies(**own)
            facts |= source.facts(length)
        elif given.kind == "sequences":
            source = Sequences(**own)
            facts |= source.facts()
            if num_pairs:  # before the folder is made, because there may be too few words
                tasks = draw_tasks(source, given.seed, num_pairs)
                facts["pairs"] = pairs.split_sizes(num_pairs)
        else:
            draw = {"markov": markov.draw, "neighbours": neighbours.draw}[given.kind]
            source = draw(*own.values(), given.seed)
            facts |= source.facts()
        folder.mkdir(parents=True, exist_ok=True)
        facts |= corpus.write_tokens(source, given.seed, count, length, folder)
        for task, lines in tasks.items():
            pairs.write(folder / f"tasks/{task}", lines)
    (folder / "world.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return facts


def main(given: argparse.Namespace) -> None:
    """Writes a corpus and prints how to use it."""
    facts = write(given)
    documents = ", ".join(f"{n:,} {split}" for split, n in facts["documents"].items())
    print(f"wrote {given.to}: documents {documents}")
    print(f"entropy {facts['nats_per_word']:.4f} nats a word; more in {given.to}/world.json")
    print(f"to train on it: corpus=wikitext:{given.to}")
    if "tasks" in facts:
        print(f"to fine-tune on its tasks: --data={given.to}/glue")
    if "pairs" in facts:
        names = " or ".join(TASKS if facts["kind"] == "sequences" else cipher.TASKS)
        print(f"to fine-tune on its pairs: python -m scalelab.eval NAME --data={given.to}/tasks")
        print(f"  NAME: {names}")


if __name__ == "__main__":
    cli.run(main, parser())
