"""Greedy and beam decoding against `transformers.generate`, token for token, in ragged batches.

A class with a cache is given the prompts of a batch at once, padded on the left as its `generate`
wants them. GPT's has neither a cache nor positions that know of padding: each prompt goes alone.
"""

import inspect
from typing import Any

import numpy as np
import pytest

from scalelab.decode import beam, loop, stepper
from scalelab.decode.choose import Rules
from scalelab.interop import maps

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import sides  # noqa: E402

SHAPE, MAX_LEN, NEW = (3, 24, 2), 48, 16
PROMPTS = [
    np.random.default_rng(n).integers(0, peers.VOCAB, n).astype(np.int32) for n in (3, 20, 1, 9)
]
SIZES = {"max_new_tokens": NEW, "max_len": MAX_LEN}


def pair(system: str, seed: int) -> tuple[Any, stepper.Stepper]:
    """Their model in float64, and our model with its weights."""
    model = peers.make(system, SHAPE, MAX_LEN, seed=seed)
    with torch.no_grad():  # else one token would be the best whatever came before
        embedding = model.get_input_embeddings().weight
        embedding *= 2 / embedding.norm(dim=1, keepdim=True)
        family, parameters = maps.load(system), dict(model.named_parameters())
        tensors = {row.paths[0]: row.tensors[0].format(SHAPE[2] - 1) for row in family.body}
        for path, factor in (("embed/positions/table", 3), (family.last_shift, 0.1)):
            if path in tensors:
                parameters[tensors[path]].mul_(factor)
    return model, stepper.prepare(sides.build(system, SHAPE, MAX_LEN), peers.weights(model))


def theirs(model: Any, end_token: int | None, **settings: Any) -> list[list[np.ndarray]]:
    """New tokens of each prompt's texts, cut before the end token, and their scores."""
    together = "past_key_values" in inspect.signature(model.forward).parameters
    found = []
    for group in [PROMPTS] if together else [[prompt] for prompt in PROMPTS]:
        length = max(map(len, group))
        ids = np.stack([np.pad(row, (length - len(row), 0)) for row in group])
        there = np.stack([np.pad(np.ones(len(r)), (length - len(r), 0)) for r in group])
        out = model.generate(
            torch.tensor(ids, dtype=torch.long),
            attention_mask=torch.tensor(there, dtype=torch.long),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=end_token,
            pad_token_id=0 if end_token is None else end_token,
            return_dict_in_generate=True,
            **settings,
        )
        count = settings.get("num_return_sequences", 1)
        rows = out.sequences[:, length:].numpy()
        for begin in range(0, len(rows), count):
            found.append([cut(row, end_token) for row in rows[begin : begin + count]])
    return found


def cut(row: np.ndarray, end_token: int | None) -> list[int]:
    places = np.flatnonzero(row == end_token) if end_token is not None else []
    return row[: places[0]].tolist() if len(places) else row.tolist()


def common_token(texts: list[list[list[int]]]) -> int:
    """One that stands in the middle of texts, so that it ends some and not all."""
    inner = np.concatenate([row[2:] for rows in texts for row in rows])
    return int(np.bincount(inner).argmax())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("system", peers.DECODERS)
def test_greedy(system: str, seed: int) -> None:
    model, made = pair(system, seed)
    endless = theirs(model, None)
    assert min(len(set(rows[0])) for rows in endless) > 2  # else anything would pass
    for end_token in (None, common_token(endless)):
        expected = [rows[0] for rows in theirs(model, end_token)]
        found = loop.generate(made, PROMPTS, Rules(), end_token=end_token, **SIZES)
        assert [text.tokens.tolist() for text in found] == expected
        assert [text.ended_by == "end" for text in found] == [len(row) < NEW for row in expected]
    assert min(map(len, expected)) < NEW


@pytest.mark.parametrize("system", peers.DECODERS)
def test_greedy_with_a_penalty(system: str) -> None:
    model, made = pair(system, 1)
    # Theirs sees the padding as tokens of the prompt: one prompt, which has none.
    prompts, rules = PROMPTS[1:2], Rules(repetition_penalty=1.7)
    ids = torch.tensor(prompts[0][None], dtype=torch.long)
    settings = {"max_new_tokens": NEW, "do_sample": False, "repetition_penalty": 1.7}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **settings)
    (text,) = loop.generate(made, prompts, rules, end_token=None, **SIZES)
    assert text.tokens.tolist() == out[0, 20:].tolist()
    (plain,) = loop.generate(made, prompts, Rules(), end_token=None, **SIZES)
    assert text.tokens.tolist() != plain.tokens.tolist()


@pytest.mark.parametrize("num_beams", [2, 3, 5])
@pytest.mark.parametrize("system", peers.DECODERS)
def test_beams(system: str, num_beams: int) -> None:
    """All the texts that were found, not the best alone."""
    model, made = pair(system, 1)
    settings = {"num_beams": num_beams, "num_return_sequences": num_beams}
    lengths = set()
    for end_token in (None, common_token(theirs(model, None, **settings))):
        expected = theirs(model, end_token, **settings)
        found = beam.search(made, PROMPTS, end_token=end_token, num_beams=num_beams, **SIZES)
        assert [[text.tokens.tolist() for text in texts] for texts in found] == expected
        lengths |= {len(row) for rows in expected for row in rows}
    assert len(lengths) > 1
