"""Counts of answers that are texts: tags, entities, words and n-grams of gold and predicted.

A score is a ratio of sums of counts over the examples (`metrics.ratio_of_counts`), or BLEU. Scores
of generated texts are those of rouge-score and sacrebleu.
"""

import contextlib
import functools
import importlib.metadata
import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


@functools.lru_cache(maxsize=1 << 17)
def count_words(gold: str, predicted: str) -> tuple[int, int]:
    """Returns the numbers of words with the right tag and of all words of a sentence."""
    pairs = list(zip(gold.split(), predicted.split(), strict=True))
    return sum(a == b for a, b in pairs), len(pairs)


@functools.lru_cache(maxsize=1 << 17)
def count_entities(gold: str, predicted: str) -> tuple[int, int]:
    """Returns (twice the found entities, gold plus predicted entities); the ratio is F1.

    An entity is found if its words and its type are right, as in conlleval (Tjong Kim
    Sang and De Meulder 2003, CoNLL-2003).
    """
    ours, theirs = entities(predicted.split()), entities(gold.split())
    return 2 * len(ours & theirs), len(ours) + len(theirs)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Returns (type, first word, word after the last) of each entity of IOB2 tags.

    A tag I-X begins an entity if the tag before it is not of type X, as in conlleval.
    """
    found, kind, start = set(), None, 0
    for place, tag in enumerate([*tags, "O"]):
        head, _, own = tag.partition("-")
        if kind is not None and (head != "I" or own != kind):
            found.add((kind, start, place))
            kind = None
        if head != "O" and kind is None:
            kind, start = own, place
    return found


def normalize(text: str) -> str:
    """Removes case, punctuation, articles and extra blanks, as in SQuAD's evaluate-v1.1.py.

    Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1.
    """
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def overlap(gold: str, predicted: str) -> float:
    """Returns the F1 of the words of a predicted answer (Rajpurkar et al. 2016, 6.1)."""
    ours, theirs = normalize(predicted).split(), normalize(gold).split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def accepted(gold: str) -> Sequence[str]:
    """Returns the accepted answers of a label."""
    return [text for text, _ in json.loads(gold)]


@functools.lru_cache(maxsize=1 << 17)
def count_exact(gold: str, predicted: str) -> tuple[float, float]:
    """Returns (1 or 0, 1): whether the prediction equals an accepted answer after `normalize`.

    The ratio is the exact match of Rajpurkar et al. 2016, 6.1.
    """
    return float(normalize(predicted) in map(normalize, accepted(gold))), 1.0


@functools.lru_cache(maxsize=1 << 17)
def count_overlap(gold: str, predicted: str) -> tuple[float, float]:
    """Returns (best F1 over the accepted answers, 1): Rajpurkar et al. 2016, 6.1."""
    return max(overlap(answer, predicted) for answer in accepted(gold)), 1.0


@functools.cache
def _rouge() -> Any:
    with _installed():
        from rouge_score.rouge_scorer import RougeScorer
    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


@functools.lru_cache(maxsize=1 << 17)
def count_rouge(gold: str, predicted: str) -> Mapping[str, float]:
    """Returns the best F1 over the accepted answers: rouge1, rouge2, rougeL (Lin 2004)."""
    found = _rouge().score_multi(accepted(gold), predicted)
    return {name: score.fmeasure for name, score in found.items()}


@functools.lru_cache(maxsize=1 << 17)
def count_ngrams(gold: str, predicted: str) -> tuple[int, ...]:
    """Returns what BLEU sums: matches and n-grams of 1 to 4 words, lengths of answer and gold.

    Papineni et al. 2002, 2.
    """
    with _installed():
        import sacrebleu
    found = sacrebleu.BLEU().corpus_score([predicted], [[answer] for answer in accepted(gold)])
    return *found.counts, *found.totals, found.sys_len, found.ref_len


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    """Context: a missing library becomes a ValueError that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"scores of generated texts need {error.name}: pip install 'scalelab[generation]'"
        ) from None


def signature(metric: str, golds: Sequence[str] = ()) -> str | None:
    """Returns the library and settings of a metric of generated texts; None for other metrics.

    Exact match and the F1 of answers are our own code.

    Args:
      metric: its name in `metrics.METRICS`.
      golds: labels of the scored examples. BLEU's `nrefs` is their number of accepted answers;
        "var" if it differs between examples, or without labels.

    Raises:
      ValueError: the library is not installed.
    """
    if metric == "bleu":
        with _installed():
            import sacrebleu

        scorer = sacrebleu.BLEU()
        scorer.corpus_score(["a"], [["a"]])
        counts = {len(accepted(gold)) for gold in golds}
        number = counts.pop() if len(counts) == 1 else "var"
        return f"sacrebleu {scorer.get_signature()}".replace("nrefs:1", f"nrefs:{number}")
    if metric.startswith("rouge"):
        with _installed():
            import rouge_score  # noqa: F401
        version = importlib.metadata.version("rouge-score")
        return f"rouge-score {version}, stemmed, F1, best of the accepted answers"
    if metric in ("exact_match", "answer_f1"):
        return "SQuAD v1.1's normalization of words, best of the accepted answers"
    return None


def count_right(gold: str, predicted: str) -> tuple[int, int]:
    """Returns (twice the answers marked 1 in both, sum of those marked 1 in each): F1 = ratio.

    It is F1a of Khashabi et al. 2018 (MultiRC).
    """
    pairs = [*zip(gold.split(), predicted.split(), strict=True)]
    return 2 * pairs.count(("1", "1")), sum(pair.count("1") for pair in pairs)
