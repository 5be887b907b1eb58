"""Minimal pairs: does a net give the better sentence the higher score?

  python -m scalelab.eval.pairs --run=RUN --data=FILE.jsonl --workdir=DIR

A line of the file is an object with `good` and `bad`, two sentences, and perhaps `group`, by which
the table has rows. scalelab/eval/sentence_scores.py has the rules that score a sentence. An item is
right where the right text has the highest score. Of equal scores the text that stands first wins;
the right one takes every place in turn, so that ties give what guessing gives. The last column has
the accuracy by mean scores of tokens. Intervals hold 95%.

Under --workdir/seed0: what a fine-tuning leaves (result.json, predictions.tsv, config.json,
environment.json), so that `python -m scalelab.eval.compare` pairs two nets item by item; and
groups.tsv, the table. Started again, an interrupted evaluation goes on.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalelab.config import cli
from scalelab.config.pretraining import Shape
from scalelab.helpers import files
from scalelab.helpers.progress import show_bar
from scalelab.resources import malloc

if TYPE_CHECKING:
    import numpy as np

    from scalelab.eval.items import Answers, Item
    from scalelab.runs.pretrained import Pretrained

AT_ONCE = 4096  # items between two saves
Reader = Callable[[pathlib.Path], "list[Item]"]


def read(path: pathlib.Path) -> "list[Item]":
    """Reads a user's own pairs."""
    from scalelab.eval import items

    found = []
    for line in items.read_lines(path, ("good", "bad")):
        texts = line["good"], line["bad"]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"{path}: expected two texts, found {texts}")
        found.append(items.Item((str(line.get("group", path.stem)),), texts, 0))
    return found


def score(
    opened: "Pretrained",
    items: "Sequence[Item]",
    rule: str,
    *,
    batch_tokens: int | None = None,
    tensor_parallel: int = 1,
    partial: pathlib.Path | None = None,
) -> "tuple[np.ndarray, np.ndarray]":
    """Scores every alternative of every item.

    Args:
      opened: the run.
      items: what is asked.
      rule: one of `sentence_scores.rules(opened)`.
      batch_tokens: tokens in a batch, padding included; None: what suits the device.
      tensor_parallel: devices that share the net.
      partial: file that keeps what is done; it goes on from there.

    Returns:
      Log-probabilities [n, C], and the numbers of tokens that they are of; C is the largest number
      of alternatives, and what an item has less scores -inf.
    """
    import numpy as np

    from scalelab.eval import placement, sentence_scores

    width = max(len(item.texts) for item in items)
    found = np.zeros((2, len(items), width))
    found[0] = -np.inf
    done = 0
    if partial is not None and partial.exists():
        with np.load(partial) as saved:
            done = int(saved["done"])
            found[:, :done] = saved["found"]
    placed = placement.place(opened, tensor_parallel)
    score_texts = sentence_scores.scorer(opened, placed, rule, batch_tokens)
    with show_bar("items", len(items), show=True, unit=" items") as tick:
        tick(done)
        for start in range(done, len(items), AT_ONCE):
            part = items[start : start + AT_ONCE]
            made = score_texts([text for item in part for text in item.texts])
            spans = [span for item in part for span in item.spans or [None] * len(item.texts)]
            added, at = made.add_up(spans), 0
            for place, item in enumerate(part, start):
                num = len(item.texts)
                for row, values in zip(found, added, strict=True):
                    row[place, :num] = values[at : at + num]
                at += num
            if partial is not None:
                _save(partial, start + len(part), found)
            tick(len(part))
    return found[0], found[1]


def _save(path: pathlib.Path, done: int, found: "np.ndarray") -> None:
    """Keeps the scores of the first `done` items."""
    import numpy as np

    with files.whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, done=done, found=found[:, :done])


# --- The program ----------------


def parser(name: str, text: str | None, data: str) -> cli.Parser:
    """Makes the parser of the command line."""
    made = cli.Parser(f"python -m scalelab.eval.{name}", text)
    add = made.add_argument
    add("--run", required=True, type=pathlib.Path, help="run folder of the net")
    add("--data", required=True, type=pathlib.Path, help=data)
    add("--workdir", required=True, type=pathlib.Path, help="folder for the results")
    add("--rule", help="how a sentence is scored; default: by what the net predicts")
    add("--batch_tokens", type=cli.positive, metavar="N",
        help="tokens in a batch, padding included; default: 2,048 on CPU, else 65,536")  # fmt: skip
    add("--tensor_parallel", type=cli.positive, default=1, metavar="N",
        help="devices that share the net; default: 1")  # fmt: skip
    return made


def program(
    name: str, text: str | None, reader: Reader, data: str, *, by_mean: bool = False
) -> Callable[..., None]:
    """Makes the main function of a yardstick of minimal pairs.

    Args:
      name: of the yardstick, as in result.json.
      text: the help of the program.
      reader: reads the items from --data.
      data: the help of --data.
      by_mean: whether scores are means over tokens, and not sums.
    """

    def main(arguments: Sequence[str] | None = None) -> None:
        """Runs the program; a mistake of the user ends in one message and exit code 2."""
        given = parser(name, text, data).parse_args(arguments)
        malloc.keep_freed()
        with cli.one_message("start the same command again to continue"):
            evaluate(name, given, reader, by_mean)

    return main


def evaluate(name: str, given: argparse.Namespace, reader: Reader, by_mean: bool = False) -> None:
    """Evaluates the run that the command line names, and writes its files.

    Raises:
      ValueError: run, data or arguments do not allow it.
    """
    import numpy as np
    import pandas as pd

    from scalelab.eval import items as items_lib
    from scalelab.eval import sentence_scores
    from scalelab.runs import environment, pretrained, records

    try:
        items = reader(given.data)
    except (KeyError, IndexError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"--data={given.data} is not what {name} reads ({error!r}); see --help"
        ) from None
    opened = pretrained.load(given.run)
    rule = sentence_scores.choose_rule(opened, given.rule)
    items, left_out = _leave_out(opened, items, rule)
    config = {
        "task": name,
        "rule": rule,
        "seed": 0,
        "system": opened.config.system,
        "system_options": dict(opened.config.system_options),
        "net": dataclasses.asdict(opened.config.net),
        "init": pretrained.tree_digest(opened.params),
        "texts": hashlib.sha256(json.dumps(items).encode()).hexdigest(),
    }
    folder, shown = given.workdir / "seed0", f"{name} of {opened.path}, rule {rule}"
    table_path, partial = folder / "groups.tsv", folder / "partial.npz"
    if (folder / "config.json").exists():
        known = records.read_config(folder)
        if differs := [key for key, value in config.items() if known.get(key) != value]:
            raise ValueError(
                f"--workdir={given.workdir} holds another evaluation ({differs[0]} differs): choose"
                " another, or delete it"
            )
        if (folder / "result.json").exists():
            made = pd.read_csv(table_path, sep="\t")
            print(f"{shown}, finished before\n{items_lib.describe(made, left_out)}", end="")
            return
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / "config.json", config)
    environment.configure_jax(opened.config.machine.compile_cache_dir, opened.config.net.dtype)
    sums, counts = score(
        opened, items, rule, batch_tokens=given.batch_tokens, tensor_parallel=given.tensor_parallel,
        partial=partial,
    )  # fmt: skip
    if by_mean:
        sums, counts = sums / np.maximum(counts, 1), np.ones_like(counts)
    answers = items_lib.judge(items, sums, counts)
    made = items_lib.table(items, answers.right, answers.by_mean)
    made.to_csv(table_path, sep="\t", index=False, float_format="%.6f")
    _write(folder, opened, config, items, answers, left_out)
    partial.unlink()
    print(f"{shown}\n{items_lib.describe(made, left_out)}wrote {folder}")


def _write(
    folder: pathlib.Path,
    opened: "Pretrained",
    config: Mapping[str, Any],
    items: "Sequence[Item]",
    answers: "Answers",
    left_out: int,
) -> None:
    """Writes predictions, environment and, last, result.json."""
    from scalelab.eval import items as items_lib
    from scalelab.runs import environment, predictions, records

    width, net = answers.outputs.shape[1], opened.config.net
    texts = [items_lib.turn(item.texts, k) for k, item in enumerate(items)]
    columns = zip(*(own + [""] * (width - len(own)) for own in texts), strict=True)
    predictions.write(
        folder / "predictions.tsv",
        texts=[list(column) for column in columns],
        gold=answers.gold,
        outputs=answers.outputs,
        labels=[str(k + 1) for k in range(width)],
    )
    files.write_json(folder / "environment.json", environment.describe())
    result = records.TaskResult(
        system=config["system"],
        shape=Shape(net.num_heads, net.width, net.num_layers),
        n_model=opened.n_model,
        seed=0,
        pretrain_seed=opened.config.seed,
        task=config["task"],
        recipe=config["rule"],
        init=str(opened.path),
        init_digest=config["init"],
        eval={"dev": {"accuracy": float(answers.right.mean())}},
        data={"dev": config["texts"]},
        remarks=(items_lib.LEFT_OUT.format(left_out),) if left_out else (),
    )
    records.write_result(folder, result)


def _leave_out(
    opened: "Pretrained", items: "Sequence[Item]", rule: str
) -> "tuple[list[Item], int]":
    """Returns the items whose texts a row of the net holds and scores, and the number of others.

    Raises:
      ValueError: none is left.
    """
    from scalelab.eval import sentence_scores

    reading = sentence_scores.make_reading(opened, rule)
    least = 2 if rule == "log_likelihood" and not reading.begin else 1
    _, starts = opened.tokenizer.encode_flat([text for item in items for text in item.texts])
    lengths = iter((starts[1:] - starts[:-1]).tolist())
    of_item = ([next(lengths) for _ in item.texts] for item in items)
    fits = [least <= min(own) and max(own) <= reading.context for own in of_item]
    kept = [item for item, fit in zip(items, fits, strict=True) if fit]
    if not kept:
        raise ValueError(
            f"{opened.path} can score no item: texts must have {least} to {reading.context} tokens"
        )
    return kept, len(items) - len(kept)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program on a user's own pairs."""
    program("pairs", __doc__, read, "file of pairs, one JSON object a line")(arguments)


if __name__ == "__main__":
    main()
