"""Chunks: types predicted from frozen states, and clusters (Jawahar et al. 2019, 3).

  python -m scalelab.eval.probes.spans --run=RUN --data=UD_DIR --workdir=DIR

Chunks in the style of CoNLL-2000 are derived from the trees. A chunk is a head and the adjacent
words that depend on it by det, amod, nummod, compound, flat, fixed, goeswith, aux or nmod:poss, or
as a particle by mark or advmod. The head's part of speech gives the type: NP, VP, PP, ADJP, ADVP or
SBAR. Heads with another part of speech make no chunk. For one chunk in six there is a random span
that is one word longer and not a chunk; its label is `none`.

The features of a span from word i to word j are [h_i; h_j; h_i * h_j; h_i - h_j]. `nmi` is the
normalized mutual information of labels and 10 k-means clusters of up to 3,500 test spans. The
control task and the baseline `by word` use the last word. docs/evaluations.md explains the table.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from scalelab.eval import suites
from scalelab.eval.probes import engine
from scalelab.tasks.treebank import Sentence

INSIDE = {"det", "amod", "nummod", "compound", "flat", "fixed", "goeswith", "aux", "nmod:poss"}
OF_PARTICLES = {"mark", "advmod"}
KINDS = {
    "NP": ("NOUN", "PROPN", "PRON", "NUM", "DET", "SYM"),
    "VP": ("VERB", "AUX"),
    "PP": ("ADP",),
    "ADJP": ("ADJ",),
    "ADVP": ("ADV",),
    "SBAR": ("SCONJ",),
}
NONE = "none"
NUM_CLUSTERS, NUM_CLUSTERED = 10, 3500
NUM_STARTS = 4  # starts of k-means; the best clustering is kept


def chunks(sentence: Sentence) -> list[engine.Labelled]:
    """Returns the chunks of a sentence: (first word, last word), kind."""
    named = {tag: kind for kind, tags in KINDS.items() for tag in tags}
    joined = [
        head > 0
        and (
            bool({relation, relation.partition(":")[0]} & INSIDE)
            or (tag == "PART" and relation in OF_PARTICLES)
        )
        for tag, head, relation in zip(sentence.upos, sentence.heads, sentence.deprels, strict=True)
    ]
    tops = []
    for place in range(len(joined)):
        while joined[place]:
            place = sentence.heads[place] - 1
        tops.append(place)
    found = []
    for top in dict.fromkeys(tops):
        first = last = top
        while first and tops[first - 1] == top:
            first -= 1
        while last + 1 < len(tops) and tops[last + 1] == top:
            last += 1
        if sentence.upos[top] in named:
            found.append(((first, last), named[sentence.upos[top]]))
    return found


def find(sentence: Sentence) -> list[engine.Labelled]:
    """Returns the chunks, and for about one in six a longer span that is not a chunk."""
    found, num = chunks(sentence), len(sentence.words)
    known = {span for span, _ in found}
    rng = np.random.default_rng(zlib.crc32(sentence.text.encode()))
    for first, last in [span for span, _ in found]:
        length = last - first + 2
        if rng.random() < 1 / 6 and length <= num:
            start = int(rng.integers(num - length + 1))
            span = start, start + length - 1
            if span not in known:
                found.append((span, NONE))
    return found


def join(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the features [h_i; h_j; h_i * h_j; h_i - h_j] of vectors [..., D]: [..., 4 D]."""
    first, last = vectors
    return np.concatenate([first, last, first * last, first - last], axis=-1)


def cluster(features: np.ndarray, labels: Sequence[str]) -> float:
    """Returns the normalized mutual information of labels and k-means clusters of spans.

    Args:
      features: [n, F].
      labels: n labels.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    chosen = np.random.default_rng(0).permutation(len(features))[:NUM_CLUSTERED]
    means = KMeans(min(NUM_CLUSTERS, len(chosen)), n_init=NUM_STARTS, random_state=0)
    found = means.fit_predict(features[chosen])
    return float(normalized_mutual_info_score(np.array(labels)[chosen], found))


EVALUATION = engine.evaluation("spans", "layers", engine.Probing(find, join, ("nmi", cluster)))

if __name__ == "__main__":
    suites.run("probes.spans")
