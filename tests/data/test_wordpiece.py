"""WordPiece by its own rule, against gains counted from scratch and the library's plain code."""

import collections
import json
import math
import random

import numpy as np
import pytest
from test_prepare import BERT
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from scalelab.data import _vocabulary, tokenizers

RNG = random.Random(1)
WORDS = {"".join(RNG.choices("aabc", k=RNG.randint(1, 8))): RNG.randint(1, 30) for _ in range(60)}
Rows = dict[str, tuple[str, ...]]


def merged(rows: Rows, pair: tuple[str, str]) -> Rows:
    made = {}
    for word, row in rows.items():
        joined: list[str] = []
        for piece in row:
            if joined and (joined[-1], piece) == pair:
                joined[-1] += piece[2:]
            else:
                joined.append(piece)
        made[word] = tuple(joined)
    return made


def log_likelihood(rows: Rows) -> float:
    counts = collections.Counter[str]()
    for word, row in rows.items():
        for piece in row:
            counts[piece] += WORDS[word]
    total = sum(counts.values())
    return sum(n * math.log(n / total) for n in counts.values())


def candidates(rows: Rows) -> dict[tuple[str, str], int]:
    """Pairs with at least 2 occurrences, those without overlap as merging finds them."""
    found = {pair for row in rows.values() for pair in zip(row, row[1:], strict=False)}
    lost = {
        pair: sum((len(rows[w]) - len(row)) * WORDS[w] for w, row in merged(rows, pair).items())
        for pair in found
    }
    return {pair: count for pair, count in lost.items() if count >= _vocabulary.MIN_FREQUENCY}


def test_each_merge_raises_the_likelihood_most() -> None:
    rows = {w: tuple("##" * (k > 0) + c for k, c in enumerate(w)) for w in WORDS}
    ours, others = _vocabulary.Pieces(WORDS), collections.Counter[str]()
    while len((found := ours.gains())[1]):
        before, counts = log_likelihood(rows), candidates(rows)
        gains = {pair: log_likelihood(merged(rows, pair)) - before for pair in counts}
        pairs = [(ours.texts[a], ours.texts[b]) for a, b in found[0].T]
        assert dict(zip(pairs, found[1], strict=True)) == pytest.approx(gains, abs=1e-6)
        place = int(np.argmax(found[1]))
        best = pairs[place]
        frequency = collections.Counter[str]()
        for word, row in rows.items():
            frequency.update(dict.fromkeys(row, 0))
            for piece in row:
                frequency[piece] += WORDS[word]
        share = {p: n / (frequency[p[0]] * frequency[p[1]]) for p, n in counts.items()}
        others["frequency"] += counts[best] < max(counts.values())
        others["share"] += share[best] < max(share.values())
        rows = merged(rows, best)
        ours.merge(*found[0][:, place].tolist())
        assert [[ours.texts[i] for i in row] for row in ours.rows] == [*map(list, rows.values())]
    assert not candidates(rows)
    assert len(set(ours.texts)) == len(ours.texts)
    assert min(others["frequency"], others["share"]) > 10  # other rules merge other pairs


def test_bert_tokenizer_reads_the_vocabulary_alike(tmp_path) -> None:
    texts = [" ".join(WORDS), " ".join(random.Random(2).choices([*WORDS], k=3000))]
    vocabularies = {}
    for kind in ("wordpiece", "wordpiece_likelihood"):
        (tmp_path / kind).mkdir()
        tokenizers.train(tokenizers.TokenizerSpec(kind, 60, False, BERT), texts, tmp_path / kind)
        made = json.loads((tmp_path / kind / "tokenizer.json").read_text())["model"]["vocab"]
        vocabularies[kind] = sorted(made, key=made.__getitem__)
    assert set(vocabularies["wordpiece"]) != set(vocabularies["wordpiece_likelihood"])
    (tmp_path / "vocab.txt").write_text("\n".join(vocabularies["wordpiece_likelihood"]))
    theirs = BertTokenizerLegacy(tmp_path / "vocab.txt", do_lower_case=False)
    ours = tokenizers.Tokenizer.load(tmp_path / "wordpiece_likelihood")
    for text in (*texts, "abc! (bcaad) Ab dab", "c" * 101):
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)
