"""Words, phrases and entities that are found without labels, by brute force on the text."""

import collections
import dataclasses
import math
import types
from typing import Any

import numpy as np
import pytest

from scalelab.config.pretraining import Config
from scalelab.data import phases
from scalelab.formats import ENTITY, PHRASE, WORD, Documents, Specials, doc_units

NAMES = ["Ada Lovelace", "New York City", "Paris", "The Hague"]
PIECES = [
    "[CLS]",
    "[SEP]",
    *"##x ##y . of in and see go we The Ada Love New York City Paris Ha".split(),
]
ID = {piece: number for number, piece in enumerate(PIECES)}
JOINS = bytes(piece.startswith("##") for piece in PIECES)
CAPITALS = bytes(piece[0].isupper() for piece in PIECES)
TOKENIZER: Any = types.SimpleNamespace(joins=JOINS, capitals=CAPITALS)
TEXTS = {  # by word, as pieces
    "Lovelace": "Love ##x", "Hague": "Ha ##y", "York": "York", "seeing": "see ##x ##y",
}  # fmt: skip


def write(seed: int, count: int) -> list[list[list[str]]]:
    """Documents of sentences of words; "in and" always go together, "The" opens sentences."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(count):
        document = []
        for _ in range(rng.integers(1, 6)):
            words = ["The"] if rng.uniform() < 0.6 else []
            for _ in range(rng.integers(1, 6)):
                kind = rng.integers(3)
                words += [
                    [str(rng.choice(["we", "go", "of", "seeing"]))],
                    ["in", "and"],
                    str(rng.choice(NAMES)).split(),
                ][kind]
            document.append([*words, "."])
        made.append(document)
    return made


def encode(text: list[list[list[str]]]) -> Documents:
    ids = [[[ID[p] for w in s for p in TEXTS.get(w, w).split()] for s in d] for d in text]
    lengths = [len(s) for d in ids for s in d]
    return Documents(
        np.array([t for d in ids for s in d for t in s], np.uint16),
        np.cumsum([0, *lengths]),
        np.array(lengths, np.int32),
        np.cumsum([0, *map(len, ids)]),
    )


def expected(text: list, train: list, options: doc_units.Options) -> list[int]:
    """The same by plain counts of strings."""
    sentences = [s for d in train for s in d]
    words = collections.Counter(w for s in sentences for w in s)
    pairs = collections.Counter(p for s in sentences for p in zip(s, s[1:], strict=False))
    first = collections.Counter(TEXTS.get(s[0], s[0]).split()[0] for s in sentences)
    later = collections.Counter(TEXTS.get(w, w).split()[0] for s in sentences for w in s[1:])

    def is_collocation(a: str, b: str) -> bool:
        if pairs[a, b] < options.min_count:
            return False
        pmi = math.log(pairs[a, b] * sum(words.values()) / (words[a] * words[b]))
        return pmi >= options.min_pmi

    found = []
    for sentence in (s for d in text for s in d):
        runs = {PHRASE: 1, ENTITY: 1}  # words of the run so far
        for place, word in enumerate(sentence):
            pieces, bits = TEXTS.get(word, word).split(), 0
            if place:
                before = sentence[place - 1]
                opener = TEXTS.get(before, before).split()[0]
                is_name = before[0].isupper() and (place > 1 or first[opener] < later[opener])
                linked = {
                    PHRASE: is_collocation(before, word),
                    ENTITY: is_name and word[0].isupper(),
                }
                for bit, goes_on in linked.items():
                    runs[bit] = runs[bit] + 1 if goes_on else 1
                    if goes_on and (runs[bit] - 1) % options.max_words:
                        bits |= bit
            found += [bits, *[WORD] * (len(pieces) - 1)]
    return found


@pytest.mark.parametrize(
    "options", [doc_units.Options(5, 1.0), doc_units.Options(40, 2.0, 2), doc_units.Options()]
)
@pytest.mark.parametrize("block", [7, 1 << 20])
def test_units_are_those_of_plain_counts(options, block, monkeypatch) -> None:
    monkeypatch.setattr(doc_units, "BLOCK_TOKENS", block)
    texts = {"train": write(0, 150), "valid": write(1, 30)}
    made = doc_units.annotate({s: encode(t) for s, t in texts.items()}, TOKENIZER, options)
    for split, text in texts.items():
        assert made[split].units.tolist() == expected(text, texts["train"], options)
        assert (made[split].units & PHRASE).any() and (made[split].units & ENTITY).any()
    learned = doc_units.learn(encode(texts["train"]), np.frombuffer(JOINS, np.uint8), options)
    assert learned.opening[ID["The"]] and not learned.opening[ID["New"]]


def test_units_travel_with_their_tokens() -> None:
    documents = {"train": encode(write(0, 150))}
    documents = doc_units.annotate(documents, TOKENIZER, doc_units.Options(5, 1.0))["train"]
    # Each token's unit, told by tokens that are all different.
    documents = Documents(
        np.arange(100, 100 + len(documents.tokens), dtype=np.uint32),
        documents.sentence_starts,
        documents.sentence_bytes,
        documents.document_starts,
        documents.units,
    )
    (chunk,) = doc_units.build(documents, specials=Specials((1,), (2,), (3,)), max_len=12)
    tokens, units = (chunk.ragged[name] for name in ("tokens", "units"))
    np.testing.assert_array_equal(tokens.starts, units.starts)
    is_text = tokens.values >= 100
    assert not units.values[~is_text].any() and units.values.dtype == np.uint8
    np.testing.assert_array_equal(
        units.values[is_text], documents.units[tokens.values[is_text] - 100]
    )


def test_a_tokenizer_without_capitals_has_no_entities(caplog) -> None:
    tokenizer: Any = types.SimpleNamespace(joins=JOINS, capitals=bytes(len(JOINS)))
    config = Config(data=dataclasses.replace(Config().data, format="doc_units"))
    documents, specials = {"train": encode(write(0, 150))}, Specials((1,), (2,), (3,))
    with caplog.at_level("WARNING", logger="scalelab"):
        made = phases.PhaseMaker(config, documents, specials, None, tokenizer=tokenizer).annotated
    units = made["train"].units
    assert not (units & ENTITY).any() and (units & PHRASE).any()
    assert "no entities" in caplog.text
