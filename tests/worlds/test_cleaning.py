"""C4's rules: by hand, and deduplication against the comparison of all pairs of spans."""

import numpy as np

from scalelab.worlds.cleaning import clean, deduplicate

Documents = list[list[str]]


def deduplicate_plainly(documents: Documents) -> Documents:
    """Compares each span with all others, for each sentence of it."""
    spans = [(n, i) for n, d in enumerate(documents) for i in range(len(d) - 2)]

    def is_kept(n: int, i: int) -> bool:
        equal = {
            (m, j): [s for s in spans if documents[s[0]][s[1] :][:3] == documents[m][j:][:3]]
            for m, j in spans
            if m == n and j <= i < j + 3
        }
        again = any(place != min(places) for place, places in equal.items())
        is_first = any(len(p) > 1 and place == min(p) for place, p in equal.items())
        return is_first or not again

    return [[s for i, s in enumerate(d) if is_kept(n, i)] for n, d in enumerate(documents)]


def test_deduplication_compares_all_spans() -> None:
    rng, changed = np.random.default_rng(0), 0
    for _ in range(150):
        sizes = rng.integers(0, 9, rng.integers(1, 6))
        texts = [rng.choice([*"abc"], size).tolist() for size in sizes]
        assert deduplicate(texts) == deduplicate_plainly(texts)
        changed += deduplicate(texts) != texts
    assert 50 < changed < 150


def test_deduplication_by_hand() -> None:
    """A copy is discarded, so is a part of a text; two sentences in a row are no span."""
    first = ["a", "b", "c", "d"]
    texts = [first, ["x", "b", "c", "d", "y"], ["a", "b", "x"], ["b", "a"], [*first]]
    assert deduplicate(texts) == [first, ["x", "y"], ["a", "b", "x"], ["b", "a"], []]
    assert deduplicate([["a"] * 5]) == [["a"] * 3]


def test_cleaning_by_hand() -> None:
    kept = ["It has five words here.", " Is this one kept too ? ", 'He said: "I am here now."']
    lost = ["Home | About | Contact | Log in", "Four words are few.", "It ends with a comma,", ""]
    lost += ["Please turn on JavaScript to read this."]
    assert clean([*kept, *lost]) == kept
    for line in ("function () { return }", "Lorem Ipsum dolor sit amet, it says.", "a } is here."):
        assert clean([*kept, line]) == []
