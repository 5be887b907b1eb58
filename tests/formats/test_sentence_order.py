"""SENTENCE-ORDER: labels, contiguous segments of one document, swaps, and what is lost."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scalelab.formats import Specials, segment_pair, sentence_order
from scalelab.formats.pairs import Choices

SPECIALS = Specials(begin=(1,), between=(2,), end=(3,))
CORPORA = st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=1, max_size=8)


def build(documents, max_len=24, seed=0, short_rate=0.1, module=sentence_order):
    """Rows (first segment, second segment, swapped), and the dropped tokens."""
    rows, dropped = [], 0
    options = module.Options(short_rate)
    for chunk in module.build(
        documents, specials=SPECIALS, max_len=max_len, seed=seed, options=options
    ):
        dropped += chunk.dropped_tokens
        tokens, starts = chunk.ragged["tokens"].values, chunk.ragged["tokens"].starts
        label = "swapped" if module is sentence_order else "random_second"
        for i in range(len(chunk)):
            row, second = tokens[starts[i] : starts[i + 1]].tolist(), chunk.flat["second_starts"][i]
            assert (row[0], row[second - 1], row[-1]) == (1, 2, 3) and len(row) <= max_len
            rows.append((row[1 : second - 1], row[second:-1], int(chunk.flat[label][i])))
    return rows, dropped


def in_order(rows):
    """(A, B) of each row as in the text."""
    return [(b, a) if swapped else (a, b) for a, b, swapped in rows]


@settings(max_examples=100, deadline=None)
@given(CORPORA, st.integers(5, 30), st.integers(0, 2**40), st.sampled_from([0.0, 0.1, 0.9]))
def test_segments_are_contiguous_and_no_token_is_lost(
    documents_of, lengths, max_len, seed, short_rate
):
    """Every token is unique: a document is a range of numbers."""
    lengths = [[n for n in document if n] for document in lengths]
    assume(max(map(len, lengths)) > 1)
    documents = documents_of(lengths)
    edges = documents.sentence_starts[documents.document_starts] + 100
    sentence_starts = set((documents.sentence_starts + 100).tolist())
    rows, dropped = build(documents, max_len, seed, short_rate)
    seen = set()
    for a, b in in_order(rows):
        assert a and b and a[0] in sentence_starts and b[0] in sentence_starts
        for segment in (a, b):
            assert segment == list(range(segment[0], segment[0] + len(segment)))
        homes = np.searchsorted(edges, [a[0], a[-1], b[0], b[-1]], side="right")
        assert len(set(homes)) == 1
        # B begins where A ends, unless A was cut at its end to fit.
        assert b[0] == a[-1] + 1 or (b[0] > a[-1] and len(a) + len(b) == max_len - 3)
        seen |= set(a) | set(b)
    total = sum(map(sum, lengths))
    alone = sum(sum(document) for document in lengths if len(document) == 1)
    assert total - len(seen) <= dropped  # a token that A lost may stand in another example's A
    assert dropped >= alone
    if all(sum(document) <= max_len - 3 for document in lengths) and short_rate == 0:
        assert total - len(seen) == dropped == alone


def test_a_swapped_pair_is_the_pair_with_its_segments_exchanged(documents_of, monkeypatch):
    """But for the odd token of two segments that are cut to equal lengths."""
    rng = np.random.default_rng(0)
    documents = documents_of([rng.integers(1, 9, rng.integers(1, 9)).tolist() for _ in range(200)])
    drawn, _ = build(documents)
    uniform = Choices.uniform

    def never(self, name, sentences):
        return np.ones(len(sentences)) if name == "label" else uniform(self, name, sentences)

    monkeypatch.setattr(Choices, "uniform", never)
    kept, _ = build(documents)
    assert {swapped for _, _, swapped in kept} == {0}
    for (a, b), (c, d, _) in zip(in_order(drawn), kept, strict=True):
        assert (a[0], b[0], len(a) + len(b)) == (c[0], d[0], len(c) + len(d))
        assert len(a) == len(c) or {len(a), len(b)} == {len(c), len(d)}
    assert 0.3 < np.mean([swapped for _, _, swapped in drawn]) < 0.7


def test_the_cut_does_not_tell_the_label(documents_of):
    """Of two long segments the second has the odd token less, swapped or not."""
    rows, _ = build(documents_of([[30] * 9] * 20), max_len=24, short_rate=0.0)
    lengths = {(len(a), len(b), swapped) for a, b, swapped in rows}
    assert lengths == {(11, 10, 0), (11, 10, 1)}


def bags(rows, topics, num_topics):
    """Features of a bag of words of each segment: same topic or not, and the words' counts."""
    found = []
    for a, b, _ in rows:
        bag = [np.bincount(topics[np.array(s) - 100], minlength=num_topics) for s in (a, b)]
        shares = [counts / counts.sum() for counts in bag]
        found.append([1.0, shares[0] @ shares[1], *(shares[0] - shares[1])])
    return np.array(found)


def accuracy(features, labels):
    """Of a logistic regression, fitted on the first half, on the second."""
    half, weights = len(labels) // 2, np.zeros(features.shape[1])
    x, y = features[:half], labels[:half]
    for _ in range(500):
        weights -= 2.0 * x.T @ (1 / (1 + np.exp(-x @ weights)) - y) / half
    return np.mean((features[half:] @ weights > 0) == labels[half:])


def test_topics_tell_nothing_of_the_order_but_which_second_is_random(documents_of):
    """Lan et al. 2020, 3.1. Each document's words are of its topic, with some of all others."""
    rng = np.random.default_rng(0)
    num_topics, lengths = 8, [rng.integers(3, 8, rng.integers(4, 12)).tolist() for _ in range(800)]
    documents = documents_of(lengths)
    own = np.repeat(rng.integers(num_topics, size=len(lengths)), [sum(d) for d in lengths])
    noise = rng.integers(num_topics, size=len(own))
    topics = np.where(rng.random(len(own)) < 0.7, own, noise)
    found = {}
    for module in (sentence_order, segment_pair):
        rows, _ = build(documents, 40, module=module)
        features, labels = bags(rows, topics, num_topics), np.array([row[2] for row in rows])
        order = rng.permutation(len(rows))
        found[module] = accuracy(features[order], labels[order]), len(rows) // 2
    sop, count = found[sentence_order]
    assert count > 300 and abs(sop - 0.5) < 3 * 0.5 / np.sqrt(count)
    assert found[segment_pair][0] > 0.8
