"""Writes a synthetic corpus: texts, their entropies, gold annotations, tasks.

  python -m scalelab.worlds --kind=grammar --to=DIR --documents=2000

DIR gets wiki.{train,valid,test}.raw, which corpus=wikitext:DIR reads, and world.json with its
entropies in nats. With --kind=grammar it also gets gold.jsonl (tags, chunks, phrases, trees and
agreement of every sentence) and glue/, nine tasks for python -m scalelab.eval.glue --data=DIR/glue.
Equal arguments give equal files.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from scalelab.config import cli
from scalelab.worlds import corpus, discourse, glue_files, markov, neighbours
from scalelab.worlds.lexicon import Sizes

# Kind -> its own arguments -> default, least value, help.
KINDS: dict[str, dict[str, tuple[int, int, str]]] = {
    "grammar": {
        "tasks_examples": (1000, 0, "training examples of a task; dev, test: a quarter; 0: none"),
        "num_topics": (Sizes.num_topics, 1, "topics"),
        "num_nouns": (Sizes.num_nouns, 1, "nouns of a topic"),
        "num_verbs": (Sizes.num_verbs, 1, "verbs of a topic"),
        "num_adjectives": (Sizes.num_adjectives, 1, "adjectives of a topic"),
    },
    "markov": {
        "vocab_size": (16, 1, "words"),
        "order": (2, 1, "number of words that the next one depends on"),
        "length": (64, 2, "words of a document"),
    },
    "neighbours": {
        "num_letters": (8, 1, "free words; as many others are functions of their neighbours"),
        "length": (63, 2, "words of a document"),
    },
}


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser(
        prog="python -m scalelab.worlds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--kind", required=True, choices=list(KINDS), help="of corpus")
    made.add_argument("--to", required=True, type=Path, help="folder to make; absent or empty")
    made.add_argument("--documents", required=True, type=int, help="of the training split")
    made.add_argument("--seed", type=int, default=0, help="of everything (0)")
    for name in dict.fromkeys(name for own in KINDS.values() for name in own):
        text = "; ".join(
            f"{kind}: {own[name][2]} ({own[name][0]})" for kind, own in KINDS.items() if name in own
        )
        made.add_argument(f"--{name}", type=int, metavar="N", help=text)
    return made


def settings(given: argparse.Namespace) -> dict[str, int]:
    """Returns the arguments of the given kind.

    Raises:
      ValueError: an argument of another kind, or a value out of range.
    """
    own = KINDS[given.kind]
    found = {}
    for name in {name for kind in KINDS.values() for name in kind}:
        value = getattr(given, name)
        if name in own:
            found[name] = own[name][0] if value is None else value
        elif value is not None:
            raise ValueError(
                f"--{name} is not an argument of --kind={given.kind}, which has"
                f" {', '.join('--' + n for n in own)}"
            )
    least = {"documents": 1, "seed": 0} | {name: own[name][1] for name in found}
    for name, value in ({"documents": given.documents, "seed": given.seed} | found).items():
        if value < least[name]:
            raise ValueError(f"--{name}={value}: expected {least[name]} or more")
    return {name: found[name] for name in own}


def write(given: argparse.Namespace) -> dict[str, Any]:
    """Writes a corpus and returns the content of world.json.

    Raises:
      ValueError: the arguments do not allow it, or the folder holds something.
      OSError: it cannot be written.
    """
    own, folder = settings(given), given.to
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--to={folder}: expected a new or empty folder; this one is not empty")
    make = {"grammar": _grammar, "markov": _markov, "neighbours": _neighbours}[given.kind]
    known = make(given, own)
    facts = {"kind": given.kind, "seed": given.seed} | own | known
    text = json.dumps(facts, indent=1) + "\n"
    (folder / "world.json").write_text(text, encoding="utf-8")
    return facts


def _grammar(given: argparse.Namespace, own: dict[str, int]) -> dict[str, Any]:
    sizes = Sizes(**{name: value for name, value in own.items() if name.startswith("num_")})
    world = discourse.draw(sizes, given.seed)
    facts: dict[str, Any] = world.facts()
    given.to.mkdir(parents=True, exist_ok=True)
    if own["tasks_examples"]:  # first, because a world may be too small for them
        made = glue_files.write(world, given.seed, own["tasks_examples"], given.to / "glue")
        facts["tasks"] = made
    return facts | {"documents": corpus.write_grammar(world, given.seed, given.documents, given.to)}


def _markov(given: argparse.Namespace, own: dict[str, int]) -> dict[str, Any]:
    source = markov.draw(own["vocab_size"], own["order"], given.seed)
    bounds = {f"nats_per_word_seeing_{k}": source.bound(k) for k in range(source.order + 1)}
    facts = {"nats_per_word": source.entropy_rate} | bounds
    return facts | _tokens(given, own, source)


def _neighbours(given: argparse.Namespace, own: dict[str, int]) -> dict[str, Any]:
    if own["length"] % 2 == 0:
        raise ValueError(f"--length={own['length']}: expected an odd number: both ends are free")
    world = neighbours.draw(own["num_letters"], given.seed)
    made = {
        "nats_per_word": world.entropy_rate,
        "nats_of_decided_word_from_left": world.left_nats,
        "accuracy_of_decided_word_from_left": world.left_accuracy,
        "table": world.table.tolist(),
    }
    return made | _tokens(given, own, world)


def _tokens(
    given: argparse.Namespace, own: dict[str, int], source: corpus.TokenSource
) -> dict[str, Any]:
    given.to.mkdir(parents=True, exist_ok=True)
    made, words = corpus.write_tokens(source, given.seed, given.documents, own["length"], given.to)
    return {"documents": made, "words": words}


def main(arguments: list[str] | None = None) -> None:
    """Runs the program; a mistake in its arguments is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("remove what was written and start the same command again"):
        facts = write(given)
        documents = ", ".join(f"{n:,} {split}" for split, n in facts["documents"].items())
        print(f"wrote {given.to}: documents {documents}")
        print(f"entropy {facts['nats_per_word']:.4f} nats a word; more in {given.to}/world.json")
        print(f"to train on it: corpus=wikitext:{given.to}")
        if facts.get("tasks"):
            print(f"to fine-tune on its tasks: --data={given.to}/glue")


if __name__ == "__main__":
    main()
