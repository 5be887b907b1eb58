"""Compares BERT and GPT-2 at equal tokens on a synthetic language; nothing to download.

  python -m scalelab.study run --config=studies/quickstart --workdir=runs/quickstart

The language is the grammar corpus of `scalelab.worlds`, whose rules are known. The first start
writes it to ~/.cache/scalelab/worlds. Each model is asked which of two sentences is better. One of
them has a mistake: an article behind its noun, or a verb in the wrong number. Nothing is fine-tuned
for it, and guessing gives 50 of 100.

The vocabulary is smaller, the rate higher and the budget shorter than the protocol's, so that the
answer is there within minutes on two cores.
"""

import argparse
import pathlib
import shutil
import tempfile

import ml_collections

from scalelab.config import files

TOKENS = 6e5
WORLD = dict(kind="grammar", documents=6000, seed=0, tasks_examples=0)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/study.py but `scale`."""
    study = files.load(files.FOLDER / "study.py")
    given = study.parse(arguments)
    if "scale" in given:
        raise ValueError("the quickstart has one scale; take configs/studies/thesis_7_5_1.py")
    defaults = {"seeds": "3"}
    if "corpus" not in given:
        world = make_world()
        defaults |= {"corpus": f"wikitext:{world}", "evaluations": str(world)}
    own = ",".join(f"{name}={value}" for name, value in (defaults | given).items())
    config = study.get_config(f"scale=small,{own}")
    config.name = "quickstart"
    config.title = "Quickstart: who learns a grammar faster?"
    config.question = "Who knows a language better after 600,000 tokens: BERT or GPT-2?"
    config.scale = "quickstart"
    use_world(config, TOKENS)
    config.stages.main = dict(
        systems=("bert", "gpt2"), shapes=("2x64x2",), variants=("default",), finetune="all"
    )
    config.finetune.tasks = ()
    config.evaluations = ("pairs",)
    config.hypotheses = (("gpt2 > bert", "pairs"),)
    config.tables = ("evaluations",)
    config.figures = ("loss_by_tokens",)
    return config


def use_world(config: ml_collections.ConfigDict, tokens: float) -> None:
    """Sets the fields of a pre-training on the grammar corpus."""
    pretrain = config.pretrain
    pretrain.tokenizer.vocab_size, pretrain.tokenizer.lowercase = 600, True
    pretrain.short.max_len, pretrain.long.max_len, pretrain.model.max_len = 32, 64, 64
    pretrain.short.batch_size, pretrain.long.batch_size = 32, 16
    pretrain.optim.total_tokens, pretrain.optim.warmup_tokens = tokens, tokens / 10
    pretrain.eval.every_steps = max(1, round(tokens / 1e4))  # ten times, at 1,000 tokens a step
    config.fields = ("optim.learning_rate=3e-3",)


def make_world(*, kind: str = "grammar", **arguments: int) -> pathlib.Path:
    """Writes a corpus with its minimal pairs and tasks to the cache, unless they are there.

    `arguments` replace those of WORLD that the kind has. The path begins with "~", so that runs
    have the same config on every machine.
    """
    from scalelab.worlds import __main__ as worlds

    name = "-".join([kind, *map(str, arguments.values())]) if arguments else "quickstart"
    path = pathlib.Path("~/.cache/scalelab/worlds") / name
    folder = path.expanduser()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = pathlib.Path(temporary, "world")
            known = "documents", "seed", *worlds.KINDS[kind]
            asked = {name: value for name, value in WORLD.items() if name in known} | arguments
            worlds.write(argparse.Namespace(**asked | {"kind": kind}, to=made))
            shutil.move(made, folder)
    return path
