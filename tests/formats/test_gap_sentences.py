"""GAP-SENTENCES: source and target give the text back; sentences are those of plain ROUGE."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scalelab.formats import Documents, Specials, gap_sentences
from scalelab.formats.gap_sentences import CHOSEN, OPENS, Options, target_length
from scalelab.helpers.names import SpecialIds

BEGIN, END, MASK = 1, 2, 3
SPECIALS = Specials((BEGIN,), (), (END,), SpecialIds({"mask": MASK}))
CHOICES = ["lead", "random", "independent", "sequential"]


def documents(*texts: list[list[int]]) -> Documents:
    """Documents of sentences of tokens."""
    sentences = [sentence for text in texts for sentence in text]
    sizes = np.array([len(sentence) for sentence in sentences])
    return Documents(
        tokens=np.array([token for sentence in sentences for token in sentence], np.uint32),
        sentence_starts=np.append(0, np.cumsum(sizes)),
        sentence_bytes=sizes.astype(np.int32),
        document_starts=np.append(0, np.cumsum([len(text) for text in texts])),
    )


def cut(items: list[int], opens: np.ndarray) -> list[list[int]]:
    edges = [*np.flatnonzero(opens[: len(items)]), len(items)]
    return [items[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("choose", CHOICES)
def test_source_and_target_give_the_text_back(choose, documents_of, corrupted, row_of) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=12), min_size=1, max_size=4),
        st.sampled_from([0.3, 0.15, 0.7, 0.9]),
        st.sampled_from([None, True]),
    )
    def check(lengths: list[list[int]], rate: float, across: bool | None) -> None:
        given = dict(choose=choose, gap_rate=rate, across_documents=across)
        stored, made = corrupted("gap_sentences", documents_of(lengths), SPECIALS, 40, **given)
        for i in range(len(stored["lengths"])):
            text, opens = row_of(stored, "tokens", i), stored["gaps"][i] & OPENS
            source, target = row_of(made, "source", i), row_of(made, "tokens", i)
            assert (source[0], source[-1], target[-1]) == (BEGIN, END, END)
            sentences = cut(text, opens)
            gaps = [sentence for sentence in sentences if {*sentence} <= {*target}]
            assert sum(gaps, []) == target[:-1] and 0 < len(gaps) < len(sentences)
            assert len(gaps) <= max(round(len(sentences) * rate), 1) and len(target) <= 40
            whole = [[MASK] if s in gaps else s for s in sentences]
            while (extra := len(sum(whole, [])) - 38) > 0:  # the last kept tokens are cut
                last = max(k for k, s in enumerate(whole) if s and s != [MASK])
                whole[last] = whole[last][: max(len(whole[last]) - extra, 0)]
            assert source[1:-1] == sum(whole, [])

    check()


def f1(part: Counter, rest: Counter) -> Fraction:
    """ROUGE-1 F1 of two bags of tokens, from precision and recall."""
    both = (part & rest).total()
    precision, recall = Fraction(both, part.total()), Fraction(both, max(rest.total(), 1))
    return 2 * precision * recall / (precision + recall) if both else Fraction(0)


def choose_plainly(text: list[list[int]], count: int, room: int, sequential: bool, bag=Counter):
    """The chosen sentences of one text by loops; `bag` counts tokens, or not."""
    chosen: list[int] = []
    for _ in range(count):
        best = None
        for k, sentence in enumerate(text):
            used = sum(len(text[j]) for j in chosen)
            if k in chosen or used + len(sentence) > room:
                continue
            part = {*chosen, k} if sequential else {k}
            bags = [
                sum((bag(text[j]) for j in range(len(text)) if (j in part) == side), Counter())
                for side in (True, False)
            ]
            if best is None or f1(*bags) > best[0]:
                best = f1(*bags), k
        chosen += [best[1]] if best else []
    return sorted(chosen)


@pytest.mark.parametrize("choose", ["independent", "sequential"])
def test_sentences_are_those_of_plain_rouge(choose, corrupted) -> None:
    """And not those of sets of tokens, nor those of the other way to choose."""
    rng = np.random.default_rng(0)
    texts = [
        [rng.integers(10, 30, rng.integers(1, 12)).tolist() for _ in range(rng.integers(2, 12))]
        for _ in range(70)
    ]
    max_len, options = 100, Options(0.3, choose)
    room = target_length(max_len, options) - 1
    stored, _ = corrupted("gap_sentences", documents(*texts), SPECIALS, max_len, choose=choose)
    assert len(stored["lengths"]) == len(texts)
    wrong = 0
    for text, length, gaps in zip(texts, stored["lengths"], stored["gaps"], strict=True):
        assert length == len(sum(text, []))
        (starts,) = np.nonzero(gaps & OPENS)
        found = np.flatnonzero(gaps[starts] & CHOSEN).tolist()
        count = max(round(len(text) * 0.3), 1)
        assert found == choose_plainly(text, count, room, choose == "sequential")
        wrong += found != choose_plainly(text, count, room, choose != "sequential")
        wrong += found != choose_plainly(text, count, room, False, lambda s: Counter({*s}))
    assert wrong > 15


def test_greedy_choices_beside_the_exhaustive_search(corrupted) -> None:
    """By rouge-score over all choices of five sentences: one sentence is the best of all; of two,
    the greedy pair is at most the best pair, which it mostly is."""
    from rouge_score import rouge_scorer

    scorer, words = rouge_scorer.RougeScorer(["rouge1"]), lambda parts: " ".join(map(str, parts))

    def rouge(text: list[list[int]], chosen: tuple[int, ...]) -> float:
        sides = ([t for k, s in enumerate(text) if (k in chosen) == x for t in s] for x in (1, 0))
        return scorer.score(*map(words, sides))["rouge1"].fmeasure

    rng = np.random.default_rng(1)
    texts = [
        [rng.integers(10, 20, rng.integers(2, 9)).tolist() for _ in range(5)] for _ in "x" * 40
    ]
    for count, least in ((1, 40), (2, 25)):
        given = dict(choose="sequential", gap_rate=count / 5)
        stored, _ = corrupted("gap_sentences", documents(*texts), SPECIALS, 200, **given)
        equal = []
        for text, gaps in zip(texts, stored["gaps"], strict=True):
            (starts,) = np.nonzero(gaps & OPENS)
            found = tuple(np.flatnonzero(gaps[starts] & CHOSEN).tolist())
            assert len(found) == count
            best = max(rouge(text, own) for own in itertools.combinations(range(5), count))
            assert rouge(text, found) <= best + 1e-9
            equal.append(rouge(text, found) >= best - 1e-9)
        assert sum(equal) >= least and (count == 1 or not all(equal))


def test_a_planted_sentence_is_chosen(corrupted, row_of) -> None:
    """The third sentence shares two tokens with the others; the fifth repeats the third."""
    text = [[10, 11, 12], [13, 14, 15], [11, 14, 16], [17, 18], [11, 14, 16], [19, 20], [21, 22]]
    chosen = {"independent": [3, 5], "sequential": [3, 1], "lead": [1, 2]}
    for choose, numbers in chosen.items():
        given = dict(choose=choose, gap_rate=0.3)
        _, made = corrupted("gap_sentences", documents(text), SPECIALS, 40, **given)
        gaps = [text[number - 1] for number in sorted(numbers)]
        assert row_of(made, "tokens", 0) == [*sum(gaps, []), END], choose
        masked = [[MASK] if k + 1 in numbers else s for k, s in enumerate(text)]
        assert row_of(made, "source", 0) == [BEGIN, *sum(masked, []), END]


def test_random_sentences_are_uniform(corrupted) -> None:
    """Of six sentences two: 15 pairs; and the length of a sentence does not matter."""
    text = [[10 + k] * (1 + k % 3) for k in range(6)]
    rows, options = np.zeros(3000, np.int64), Options(0.3, "random")
    stored, _ = corrupted(
        "gap_sentences", documents(text), SPECIALS, 30, rows=rows, choose="random"
    )
    given = {"specials": SPECIALS, "options": options, "max_len": 30}
    made = gap_sentences.corrupt(stored, seed=0, epochs=np.arange(3000), examples=rows, **given)
    found = Counter(tuple(np.unique(row).tolist()) for row in made["tokens"])
    assert len(found) == 15 and stats.chisquare([*found.values()]).pvalue > 1e-4


def test_what_does_not_fit_the_target_is_left_out(corrupted, row_of) -> None:
    """The room is 9 tokens: of the second text the short sentence is chosen, the third has none."""
    assert target_length(20, Options(0.3, "lead")) == 10 + 1
    long, short, longer = [*range(10, 22)], [30, 31], [*range(40, 52)]
    texts = [[short, long], [long, short], [long, longer], [long]]
    made = [
        corrupted("gap_sentences", documents(text, [[5], [6]]), SPECIALS, 20, choose="lead")[1]
        for text in texts
    ]
    assert [len(batch["lengths"]) for batch in made] == [2, 2, 1, 1]
    assert row_of(made[1], "tokens", 0) == [*short, END]
    assert row_of(made[0], "source", 0) == [BEGIN, MASK, *long, END]
    (chunk,) = gap_sentences.build(documents(*texts), specials=SPECIALS, max_len=20)
    assert chunk.dropped_tokens == 24 + 12


def test_a_text_goes_on_in_the_next_document() -> None:
    """In the next one that is asked for; a sentence is compared with those of all of them."""
    docs = documents([[10, 11], [12, 13, 14]], [[15] * 5], [[12, 14, 16]])
    given = dict(specials=SPECIALS, max_len=40, document_ids=np.array([0, 2]))
    (chunk,) = gap_sentences.build(docs, **given, options=Options(across_documents=True))
    assert chunk.ragged["tokens"].values.tolist() == [10, 11, 12, 13, 14, 12, 14, 16]
    assert chunk.ragged["tokens"].starts.tolist() == [0, 8] and chunk.dropped_tokens == 0
    gaps = chunk.ragged["gaps"].values
    assert gaps.tolist() == [OPENS, 0, OPENS | CHOSEN, CHOSEN, CHOSEN, OPENS, 0, 0]
    (chunk,) = gap_sentences.build(docs, **given)
    assert chunk.ragged["tokens"].starts.tolist() == [0, 5] and chunk.dropped_tokens == 3


def test_bad_input_is_refused(corrupted) -> None:
    bare = Specials((BEGIN,), (), (END,), SpecialIds({"eos": END}))
    with pytest.raises(ValueError, match="no special token has the role 'mask'"):
        corrupted("gap_sentences", documents([[4], [5]]), bare, 16)
    with pytest.raises(ValueError, match="needs two sentences in a document"):
        corrupted("gap_sentences", documents([[4, 5]], [[6]]), SPECIALS, 16)
    with pytest.raises(ValueError, match="max_len = 3 .*4"):
        corrupted("gap_sentences", documents([[4], [5]]), SPECIALS, 3)
    with pytest.raises(ValueError, match="'lead' or 'random' or"):
        corrupted("gap_sentences", documents([[4], [5]]), SPECIALS, 16, choose="best")
