"""Texts behind 200 sources, beside `generate` of `transformers`: equal token for token."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from scalelab import systems
from scalelab.decode import beam, loop, stepper
from scalelab.decode.choose import Rules
from scalelab.finetuning.text_to_text import TextToText
from scalelab.interop import exporting
from scalelab.training import pretrained

COUNT, NEW, AT_ONCE = 200, 12, 50


@dataclasses.dataclass
class Sides:
    """A run of ours with random weights, its export as a class of `transformers`, and sources."""

    net: Any
    params: Any
    made: stepper.Stepper
    theirs: Any
    sources: list[np.ndarray]
    start: int
    sizes: dict[str, Any]


@pytest.fixture(scope="module", params=["t5", "bart"])
def sides(request, wikitext: pathlib.Path, tmp_path_factory) -> Sides:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import transformers

    folder = tmp_path_factory.mktemp(request.param)
    tiny.write_run(folder / "run", request.param, wikitext, folder / "cache", 0.5)
    exporting.run(folder / "run", folder / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "out").eval()
    opened = pretrained.load(folder / "run")
    special = systems.special_ids(opened.system, opened.tokenizer.special_ids)
    rng, most = np.random.default_rng(0), opened.config.model.max_len - NEW
    first = max(special.values()) + 1
    sources = [
        np.append(rng.integers(first, opened.config.tokenizer.vocab_size, n), special["eos"])
        for n in rng.integers(1, most, COUNT)
    ]
    sizes = {"max_new_tokens": NEW, "max_len": opened.config.model.max_len}
    made, start = stepper.prepare(opened.net, opened.params), np.array([special["start"]])
    free = {"sources": sources[:AT_ONCE], **sizes, "end_token": None}
    written = [text.tokens for text in loop.generate(made, [start] * AT_ONCE, Rules(), **free)]
    counts = np.bincount(np.concatenate(written))  # random weights hardly write the true end
    sizes["end_token"] = int(np.argmin(np.where(counts < AT_ONCE // 5, AT_ONCE * NEW, counts)))
    return Sides(opened.net, opened.params, made, theirs, sources, special["start"], sizes)


def generate(sides: Sides, sources: list[np.ndarray], **given: Any) -> list[list[int]]:
    """The new tokens of `generate`, without the end and padding."""
    import torch

    tokens, lengths = loop.fill(sources, sides.sizes["max_len"])
    mask = np.arange(tokens.shape[1]) < lengths[:, None]
    with torch.inference_mode():
        found = sides.theirs.generate(
            torch.tensor(tokens, dtype=torch.long), attention_mask=torch.tensor(mask),
            max_new_tokens=NEW, do_sample=False, decoder_start_token_id=sides.start,
            eos_token_id=sides.sizes["end_token"], forced_bos_token_id=None,
            forced_eos_token_id=None, no_repeat_ngram_size=0, min_length=0, **given,
        )  # fmt: skip
    rows = found[:, 1:].tolist()
    end = sides.sizes["end_token"]
    return [row[: row.index(end)] if end in row else row for row in rows]


def batches(sides: Sides) -> list[list[np.ndarray]]:
    return [sides.sources[k : k + AT_ONCE] for k in range(0, COUNT, AT_ONCE)]


@pytest.mark.ci
@pytest.mark.parity
def test_greedy_texts_are_equal(sides: Sides) -> None:
    ends = set()
    for own in batches(sides):
        begun = [np.array([sides.start], np.int32)] * len(own)
        found = loop.generate(sides.made, begun, Rules(), sources=own, **sides.sizes)
        texts = [text.tokens.tolist() for text in found]
        ends |= {text.ended_by for text in found}
        theirs = generate(sides, own, num_beams=1)
        assert [text[:NEW] for text in theirs] == texts
    assert ends == {"length", "end"}


@pytest.mark.ci
@pytest.mark.parity
def test_beams_are_equal(sides: Sides) -> None:
    """At two penalties, which rank texts differently."""
    made: dict[float, list[list[int]]] = {1.0: [], 0.0: []}
    for penalty, texts in made.items():
        for own in batches(sides):
            begun = [np.array([sides.start], np.int32)] * len(own)
            given = {"length_penalty": penalty, "sources": own, **sides.sizes}
            found = beam.search(sides.made, begun, num_beams=4, **given)
            texts += [best[0].tokens.tolist() for best in found]
            theirs = generate(sides, own, num_beams=4, length_penalty=penalty, early_stopping=False)
            assert texts[-len(own) :] == theirs
    assert made[1.0] != made[0.0]


@pytest.mark.ci
@pytest.mark.parity
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beams_of_an_evaluation_are_equal(sides: Sides, penalty: float) -> None:
    own, end = batches(sides)[0], sides.sizes["end_token"]
    tokens, lengths = loop.fill(own, sides.sizes["max_len"])
    batch = {"tokens": tokens, "lengths": lengths, "examples": np.arange(len(own))}
    net = TextToText(sides.net, NEW, end, None, sides.start, 4, penalty)
    predict = jax.jit(functools.partial(net.apply, method="predict"))
    found = np.asarray(predict({"params": {"body": sides.params}}, batch))
    texts = [row[(row >= 0) & (row != end)].tolist() for row in found]
    given = {"length_penalty": penalty, "early_stopping": False}
    assert texts == generate(sides, own, num_beams=4, **given)
