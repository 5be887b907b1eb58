"""SENTENCE-TASKS: labels of texts and tokens against the structure of the documents."""

import dataclasses
import types
from typing import Any

import numpy as np
import pytest
from scipy import stats

from scalelab.formats import CAPITAL, Documents, Specials, marks, sentence_tasks

SPECIALS = Specials((1,), (2,), (3,))
LENGTH = 32
ROOM = LENGTH - 4
FIRST = 100


@pytest.fixture(scope="module")
def documents(documents_of):
    rng = np.random.default_rng(0)
    return documents_of([rng.integers(1, 9, rng.integers(1, 30)).tolist() for _ in range(700)])


def build(documents: Documents, **options: float) -> list[dict]:
    """Examples: pieces as lists of tokens, labels, word labels."""
    made = []
    options = sentence_tasks.Options(**options)
    for chunk in sentence_tasks.build(
        documents, specials=SPECIALS, max_len=LENGTH, seed=3, options=options
    ):
        tokens, labels = chunk.ragged["tokens"], chunk.ragged["word_labels"]
        for i in range(len(chunk)):
            part = slice(*tokens.starts[i : i + 2])
            row, pieces = tokens.values[part], [[]]
            for token in row[1:-1].tolist():
                pieces = [*pieces, []] if token == 2 else [*pieces[:-1], [*pieces[-1], token]]
            own = labels.values[part]
            assert ((own & sentence_tasks.TEXT > 0) == (row > 3)).all() and len(row) <= LENGTH
            flat = {name: int(values[i]) for name, values in chunk.flat.items()}
            made.append({"pieces": pieces, "labels": own[row > 3]} | flat)
            if max(flat[name] for name in ("distance", "title", "marker")) >= 0:
                assert row[flat["second_starts"] - 1] == 2 and len(pieces) == 2
            else:
                assert flat["second_starts"] == LENGTH
    return made


def distance_of(documents: Documents, pieces: list[list[int]]) -> int:
    """The label by the places of A and B; every token of the text is another one."""
    starts = documents.sentence_starts[documents.document_starts] + FIRST
    home_a, home_b = np.searchsorted(starts, [pieces[0][0], pieces[1][0]], side="right")
    return 2 if home_a != home_b else int(pieces[1][0] != pieces[0][-1] + 1)


def test_labels_of_texts_are_those_of_the_documents(documents) -> None:
    """And each class is as frequent as the others. Labels that are shifted by one are wrong."""
    edges = {*(documents.sentence_starts + FIRST).tolist()}
    made = build(documents)
    seen = {"order": [], "distance": []}
    for example in made:
        pieces, order, distance = (example[n] for n in ("pieces", "order", "distance"))
        for piece in pieces:
            assert piece == [*range(piece[0], piece[0] + len(piece))] and piece[0] in edges
        if order >= 0:
            assert np.argsort(np.argsort([p[0] for p in pieces])).tolist() == [
                *sentence_tasks.ORDERS[order]
            ]
            text = sorted(pieces)
            assert all(a[-1] + 1 == b[0] for a, b in zip(text, text[1:], strict=False))
        elif distance >= 0:
            assert distance_of(documents, pieces) == distance
            assert not {*pieces[0]} & {*pieces[1]}
            assert pieces[1][-1] + 1 in edges or sum(map(len, pieces)) == ROOM
        else:
            assert len(pieces) == 1
        for name in seen:
            seen[name] += [example[name]] * (example[name] >= 0)
    for name, classes in (("order", 6), ("distance", 3)):
        counts = np.bincount(seen[name])
        assert len(counts) == classes and counts.sum() > 0.1 * len(made)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_elsewhere_is_outside_the_example_in_the_document(documents) -> None:
    """By loops over places; a token that occurs in its example alone has the label 0."""
    words = np.random.default_rng(1).integers(FIRST, FIRST + 60, len(documents.tokens))
    words = words.astype(np.uint32)
    text = dataclasses.replace(documents, tokens=words, units=(words % 2 * CAPITAL).astype("u1"))
    starts = documents.sentence_starts[documents.document_starts]
    wrong = 0
    for example, labeled in list(zip(build(documents), build(text), strict=True))[:400]:
        places = [token - FIRST for piece in example["pieces"] for token in piece]
        expected, also = [], []
        for place in places:
            home = np.searchsorted(starts, place, side="right")
            own = range(starts[home - 1], starts[home])
            expected.append(any(words[q] == words[place] and q not in places for q in own))
            also.append(any(words[q] == words[place] and q != place for q in own))
        labels = labeled["labels"]
        assert (labels & sentence_tasks.ELSEWHERE > 0).tolist() == expected
        assert ((labels & CAPITAL > 0) == words[places] % 2).all()
        wrong += expected != also
    assert wrong > 100  # if places in the example counted, too


def test_rates_choose_the_kinds(documents) -> None:
    assert {e["distance"] for e in build(documents, distance_rate=0.0)} == {-1}
    only = build(documents, distance_rate=0.0, reorder_rate=1.0)
    assert all(e["order"] >= 0 or len(e["pieces"]) == 1 for e in only)


def test_capitals_are_those_of_whole_words() -> None:
    """Paris Ha##gue the: the piece behind a capital has its word's label."""
    documents = Documents(
        np.array([0, 1, 2, 3], np.uint16), np.array([0, 4]), np.array([4]), np.array([0, 1])
    )
    pieces: Any = types.SimpleNamespace(
        joins=b"\0\0\1\0",
        capitals=b"\1\1\0\0",
        special_ids={"unk": 9},
        encode=lambda text: np.array([9]),
    )
    made = sentence_tasks.annotate({"train": documents}, pieces, sentence_tasks.Options())
    assert (made["train"].units & CAPITAL > 0).tolist() == [True, True, True, False]


# Pieces of markers and titles; each other token of `marked` is another one.
IDS = {word: 10 + k for k, word in enumerate(sorted({*" ".join(marks.MARKERS).split(), ",", "="}))}


def encode(text: str) -> np.ndarray:
    return np.array([IDS[word] for word in text.replace(",", " ,").split()])


@pytest.fixture(scope="module")
def marked() -> Documents:
    """Documents with and without titles; markers of three lengths, the first one most frequent."""
    rng, rows, token = np.random.default_rng(2), [], FIRST
    for number in range(6000):
        rows.append([])
        for size in [
            *rng.integers(1, 5, int(number % 5 > 0)),
            *rng.integers(2, 9, rng.integers(2, 9)),
        ]:
            text = [*range(token, token := token + int(size))]
            is_title = not rows[-1] and number % 5
            if is_title:
                signs = [IDS["="]] * int(rng.integers(1, 4))
                text = [*signs, *text, *signs]
            elif rng.random() < 0.3:
                chances = np.array([7, 1, 1, 1, 1, 1]) / 12
                text = [*encode(rng.choice(marks.MARKERS, p=chances) + ","), *text]
            rows[-1].append(text)
    sizes = [len(text) for row in rows for text in row]
    documents = Documents(
        np.array([t for row in rows for text in row for t in text], np.uint32),
        np.cumsum([0, *sizes]),
        np.array(sizes, np.int32),
        np.cumsum([0, *map(len, rows)]),
        np.zeros(sum(sizes), np.uint8),
    )
    none = bytes(int(documents.tokens.max()) + 1)
    pieces: Any = types.SimpleNamespace(joins=none, capitals=none, special_ids={}, encode=encode)
    return sentence_tasks.annotate({"train": documents}, pieces, sentence_tasks.Options())["train"]


def leak(sizes: list[int], labels: list[int]) -> float:
    """The p-value of lengths that do not depend on the label; rare ones are pooled."""
    rare = np.sort(sizes)[[len(sizes) // 20, -len(sizes) // 20]]
    table = [
        np.bincount(np.clip(sizes, *rare)[np.array(labels) == k], minlength=99) for k in {*labels}
    ]
    return stats.chi2_contingency(np.array(table)[:, np.sum(table, 0) > 0])[1]


def test_titles_and_markers_are_those_of_the_documents(marked) -> None:
    """Found again in the tokens by loops; labels are balanced and lengths do not tell them."""
    tokens, starts = marked.tokens.tolist(), marked.sentence_starts.tolist()
    place = {token: k for k, token in enumerate(tokens) if token >= FIRST}
    edges, homes = {*starts}, np.array(starts)[marked.document_starts]
    titles = {}  # first token -> document and tokens
    for number, home in enumerate(marked.document_starts[:-1]):
        own = tokens[starts[home] : starts[home + 1]]
        if own[0] == IDS["="]:
            inner = [token for token in own if token >= FIRST]
            titles[inner[0]] = number, inner
    seen = {"title": [], "marker": []}
    for example in build(marked, discourse_rate=0.9):
        pieces = example["pieces"]
        last = place.get(pieces[-1][-1], -1) + 1
        if (label := example["title"]) >= 0:
            number, inner = titles[pieces[0][0]]
            home = np.searchsorted(homes, place[pieces[1][-1]], "right") - 1
            assert pieces[0] == inner and label == (number != home) and last in edges
            seen["title"].append((label, len(inner), len(pieces[1])))
            continue
        assert not any(token in titles or token == IDS["="] for piece in pieces for token in piece)
        if (label := example["marker"]) >= 0:
            marker = encode(marks.MARKERS[label] + ",").tolist()
            at = place[pieces[1][0]]
            assert tokens[at - len(marker) : at] == marker and at - len(marker) in edges
            assert place[pieces[0][-1]] == at - len(marker) - 1 and last in edges
            assert pieces[1] == tokens[at:last]
            seen["marker"].append((label, len(marker), len(pieces[0]) + len(pieces[1])))
    for name, classes in (("title", 2), ("marker", 6)):
        labels, first, sizes = map(list, zip(*seen[name], strict=True))
        counts = np.bincount(labels)
        assert len(counts) == classes and counts.min() > 200
        assert stats.chisquare(counts).pvalue > 1e-3 and leak(sizes, labels) > 1e-3
        if name == "title":
            assert leak(first, labels) > 1e-3
    # If a text had the same room with its marker.
    assert leak([*map(sum, zip(first, sizes, strict=True))], labels) < 1e-6


def test_no_token_is_lost_uncounted(documents, marked) -> None:
    """The first text alone counts of two, and the second alone behind a title."""
    for text in (documents, marked):
        chunks = sentence_tasks.build(text, specials=SPECIALS, max_len=LENGTH, seed=3)
        dropped, used = sum(chunk.dropped_tokens for chunk in chunks), []
        for e in build(text):
            pieces = e["pieces"][:1] if e["distance"] > 0 else e["pieces"][e["title"] >= 0 :]
            used += [token for piece in pieces for token in piece]
        assert len(used) == len(text.tokens) - dropped
        assert text is marked or len({*used}) == len(used)
