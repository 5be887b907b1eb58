"""How a system reads a text alone: its declaration decides, for every program that scores."""

import types
from typing import Any

import numpy as np
import pytest

from scalelab import formats
from scalelab.eval import lm
from scalelab.systems import Reading
from scalelab.training.pretrained import Pretrained

IDS = {"pad": 0, "eos": 1, "sentinel_0": 7, "cls": 8, "sep": 9}
SPANS = Reading(begin=("sentinel_0",), source=("sentinel_0", "eos"), trained=False)
SEPARATE = Reading(begin=("cls", "sep"), end=("eos",))


def opened(**system: Any) -> Pretrained:
    frame = formats.Frame((8,), (9,), (9, 1))
    tokenizer: Any = types.SimpleNamespace(
        special_ids=IDS, frame=lambda: frame, count_unknown=lambda ids: 0
    )
    module: Any = types.SimpleNamespace(**{"HAS_SOURCE": "START" in system} | system)
    spec = types.SimpleNamespace(lowercase=False)
    config: Any = types.SimpleNamespace(system="guest", tokenizer=spec)
    nothing: Any = None
    return Pretrained(nothing, config, module, tokenizer, nothing, 0, True)


@pytest.mark.parametrize(("system", "causal", "expected"), [
    ({}, False, ((8,), (9, 1), None)),
    ({}, True, ((8,), (), None)),
    ({"READING": SEPARATE}, False, ((8, 9), (1,), None)),
    ({"READING": SEPARATE}, True, ((8, 9), (1,), None)),
    ({"START": "pad"}, True, ((0,), (), (8, 9, 1))),
    ({"START": "pad", "READING": SPANS}, True, ((0, 7), (), (7, 1))),
])  # fmt: skip
def test_the_declaration_frames_a_text(system: dict, causal: bool, expected: Any) -> None:
    assert tuple(opened(**system).frame_text(causal=causal)) == expected


def test_whether_training_had_such_texts() -> None:
    assert not opened().reading_notes and not opened(READING=SEPARATE).reading_notes
    assert opened(START="pad").reading_notes  # nobody declared that it had
    assert opened(START="pad", READING=SPANS).reading_notes
    assert not opened(START="pad", READING=Reading(source=())).reading_notes


def test_scores_of_documents_are_marked() -> None:
    documents: Any = types.SimpleNamespace(tokens=np.array([8, 9]))
    assert lm.notes(opened(), documents) == []
    (note,) = lm.notes(opened(READING=Reading(trained=False)), documents)
    assert "guest" in note and "had no such inputs" in note


def test_a_role_that_the_tokenizer_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="'mask'.*pad, eos"):
        opened(READING=Reading(begin=("mask",))).frame_text(causal=True)
