"""Scores of the models of zoo/ on a few questions of each suite stay what they were.

The numbers were computed by the code before the suites shared one engine (commit bf7a0b9e).
"""

import functools
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tiny

from scalelab.eval import evaluation, lama, lambada, pairs, prompts, reading_times
from scalelab.eval.items import Item
from scalelab.eval.lama import Fact
from scalelab.interop import importing
from scalelab.training import pretrained

GOLDEN = tiny.ROOT / "tests/golden/suites.json"
# What the suites ask: whole texts, parts of them, several texts, and a formula.
ITEMS = [
    Item(("blimp",), ("The dogs in the park run.", "The dogs in the park runs."), 0),
    Item(("agreement",), ("The keys to the cabinet are", "The keys to the cabinet is"), 0),
    Item(("cats",), ("He drank the water.", "He drank the house.", "He drank stones."), 0),
    Item(("copa",), ("It rained so I ran.", "It rained so I sat in the sun."), 0,
         (((9, 19),), ((9, 30),))),
    Item(("crows_pairs",), ("Old men lie.", "Rich old men lie."), 0,
         (((4, 7), (8, 11)), ((9, 12), (13, 16)))),
    Item(("syntaxgym",), ("The man here sees it.", "The man they see sees it."), 0,
         (((12, 17),), None), "x0 < x1"),
]  # fmt: skip
PASSAGES = [lambada.Passage("t", text, text.rfind(" ")) for text in (
    "He was born in the United States", "She went to the unbelievable lighthouse")]  # fmt: skip
FACTS = [Fact("P1", "TREx", f"The {a} of the country is ", b, ".")
         for a, b in (("king", "French"), ("language", "English"), ("king", "German"))]  # fmt: skip
WORDS = [("The old man", "slept"), ("One small", "lighthouse")]
TASK = [prompts.Example("SST-2", k < 4, (text,), k % 2) for k, text in enumerate(
    ("a bore", "a joy", "too long", "very good", "fine and warm", "a waste"))]  # fmt: skip


@functools.cache
def imported(name: str, folder: pathlib.Path) -> pretrained.Pretrained:
    importing.run(str(tiny.ROOT / "zoo" / name), folder / name)
    return pretrained.load(folder / name)


def measure(opened: pretrained.Pretrained, folder: pathlib.Path) -> dict[str, Any]:
    """The numbers of each suite for a model."""

    def ask(**options: Any) -> evaluation.Asked:
        return evaluation.Asked(None, folder, {"rule": None, "per_group": 0} | options)

    found: dict[str, Any] = {}
    for rule in ("log_likelihood",) if opened.predicts == "next" else ("pll", "pll_word"):
        made = pairs.measure(opened, ITEMS, ask(rule=rule))
        found[rule] = np.where(np.isfinite(made.outputs), made.outputs, 0.0).tolist()
    guesses = lambada.guess(opened, PASSAGES, ask())
    found["lambada"] = [guesses.nats.tolist(), guesses.right.tolist()]
    among = np.arange(opened.config.tokenizer.vocab_size) % 2 == 0
    found["lama"] = [x.tolist() for x in lama.rank(opened, FACTS, among, ask())]
    objects = {"P1": ["French", "English", "German", "very small"]}
    found["objects"] = [x.tolist() for x in lama.rank_objects(opened, FACTS, objects, ask())]
    for official in (False, True):
        made = reading_times.surprisals(opened, WORDS, official=official)
        found[f"reading {official}"] = made.tolist()
    request = ask(shots=2, seeds=1, orders=1, random_labels=False, examples=9)
    found["prompts"] = prompts.measure(opened, TASK, request).outputs.tolist()
    return found


@pytest.mark.parametrize("name", ["gpt2-2x128x2", "bert-2x128x2"])
def test_scores_are_those_of_the_golden_file(name: str, tmp_path_factory, update_golden) -> None:
    folder = tmp_path_factory.mktemp("zoo")
    made = measure(imported(name, folder), folder)
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if update_golden:
        GOLDEN.write_text(json.dumps(known | {name: made}) + "\n")
        return
    assert made.keys() == known[name].keys()
    for key, values in made.items():
        for a, b in zip(values, known[name][key], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, err_msg=key)
