"""Chunks: their kinds, from frozen states, and their clusters (Jawahar et al. 2019, 3).

  python -m scalelab.eval.probes.spans --run=RUN --data=UD_DIR --workdir=DIR

Chunks, in the manner of CoNLL-2000, are derived from the trees. A chunk is a head with the words
around it, without a gap, that belong to it by det, amod, nummod, compound, flat, fixed, goeswith,
aux or nmod:poss, or as a particle by mark or advmod. The head's part of speech gives the kind: NP,
VP, PP, ADJP, ADVP or SBAR. Heads of other kinds make no chunk. For one chunk in six, a random span
that is one word longer and no chunk is labelled `none`.

The features of a span from word i to word j are [h_i; h_j; h_i * h_j; h_i - h_j]. `nmi` is the
normalised mutual information of labels and 10 k-means clusters of up to 3,500 test spans. The
control task and the baseline `by word` use the last word. docs/yardsticks.md explains the table.
"""

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalelab.eval.probes import engine
from scalelab.eval.probes.treebank import Sentence
from scalelab.eval.yardstick import program

if TYPE_CHECKING:
    import numpy as np

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
NUM_STARTS, NUM_STEPS = 4, 25  # of k-means


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
    """Returns the chunks, and for about one in six a longer span that is no chunk."""
    import numpy as np

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


def join(vectors: "Sequence[np.ndarray]") -> "np.ndarray":
    """Returns [h_i; h_j; h_i * h_j; h_i - h_j]."""
    import numpy as np

    first, last = vectors
    return np.concatenate([first, last, first * last, first - last], axis=-1)


def cluster(features: "np.ndarray", labels: Sequence[str]) -> float:
    """Returns the mutual information of labels and k-means clusters of spans [n, F]."""
    import warnings

    import numpy as np
    from scipy.cluster import vq

    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(features))[:NUM_CLUSTERED]
    points = features[chosen].astype(np.float64)
    best = np.inf, np.zeros(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cluster may become empty
        for _ in range(NUM_STARTS):
            centres, found = vq.kmeans2(points, NUM_CLUSTERS, minit="++", rng=rng, iter=NUM_STEPS)
            spread = ((points - centres[found]) ** 2).sum()
            best = min(best, (spread, found), key=lambda made: made[0])
    return mutual_information(best[1], np.array(labels)[chosen])


def mutual_information(a: "np.ndarray", b: "np.ndarray") -> float:
    """Returns 2 I(a; b) / (H(a) + H(b)) of two labellings [n], 0 where both are constant."""
    import numpy as np
    import pandas as pd

    joint = pd.crosstab(a, b).to_numpy() / len(a)

    def entropy(shares: np.ndarray) -> float:
        return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())

    total = entropy(joint.sum(axis=0)) + entropy(joint.sum(axis=1))
    return 2 * (total - entropy(joint)) / total if total else 0.0


YARDSTICK = engine.yardstick("probes.spans", engine.Probing(find, join, ("nmi", cluster)))
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
