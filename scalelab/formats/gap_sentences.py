"""GAP-SENTENCES: sentences of a text are masked in the source, and they are the target.

Zhang et al. 2020 ("PEGASUS"), 3.1. A text has sentences of one document, as in `doc_sentences`:

    text    a1 a2 . b1 b2 b3 . c1 . d1 d2 .
    source  begin a1 a2 . mask c1 . mask end
    tokens  b1 b2 b3 . d1 d2 . end

`gap_rate` of the sentences, rounded, are chosen, one after the other, by `choose`:

| choose | the next sentence |
|---|---|
| lead | the first one |
| random | any one, anew in each epoch |
| independent | the one with the highest ROUGE-1 F1 against the other sentences |
| sequential | the one that gives the chosen ones the highest ROUGE-1 F1 against the others |

- ROUGE-1 counts tokens, repeated ones too (the paper's "Orig"); the first of equals is chosen.
- A sentence that does not fit the rest of the target is passed over. A text without two sentences,
  or without one that fits, is left out; `dropped_tokens` counts it.
- A text has more tokens than a source. If too few of them go into the target, the source is cut at
  its end, as in the published code.
- With `across_documents` a text goes on in the next document, without a separator. Its sentences
  are then compared with those of other documents too.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np

from scalelab.config.fields import choice
from scalelab.formats import Array, Documents, Examples, Specials, assembly, doc_sentences, draws

VERSION = 1
OPENS, CHOSEN = 1, 2  # bits of `gaps`: the first token of a sentence; a token of a chosen sentence
SLACK = 0.9  # share of the expected gap that texts are longer than sources
MARGIN = 1.3  # longest target / expected target
FULL_MARGIN = 1.1  # the same across documents, where texts have equal lengths


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the format."""

    gap_rate: assembly.Rate = 0.3
    choose: Annotated[str, choice("lead", "random", "independent", "sequential")] = "independent"
    across_documents: bool | None = None  # True: a text goes on in the next document


def text_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest text."""
    return int(max_len / (1 - SLACK * options.gap_rate))


def target_length(max_len: int, options: Options) -> int:
    """Returns the length in tokens of the longest target."""
    margin = FULL_MARGIN if options.across_documents else MARGIN
    return min(int(margin * options.gap_rate * text_length(max_len, options)) + 1, max_len)


STORED = (*assembly.text_arrays(text_length), Array("gaps", "ragged", "uint8", text_length))
ARRAYS = assembly.pair_arrays(target_length)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The sentences of some texts, text after text; arrays are int64.

    Attributes:
      homes: text of each sentence, ascending [n].
      sizes: tokens of each sentence [n].
      num_texts: number of texts.
    """

    homes: np.ndarray
    sizes: np.ndarray
    num_texts: int

    def choose(
        self, rate: float, room: int, score: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Chooses `rate` of the sentences of each text, those of the highest score, one by one.

        Args:
          rate: share of the sentences.
          room: most tokens of the chosen sentences of a text.
          score: function of the chosen sentences so far, bool [n], that scores all, float64 [n].

        Returns:
          bool [n].
        """
        counts = assembly.share(np.bincount(self.homes, minlength=self.num_texts), rate)
        chosen, left = np.zeros(len(self.homes), bool), np.full(self.num_texts, room)
        for number in range(counts.max(initial=0)):
            able = ~chosen & (self.sizes <= left[self.homes]) & (number < counts)[self.homes]
            scores = np.where(able, score(chosen), -np.inf)
            best = np.full(self.num_texts, -np.inf)
            np.maximum.at(best, self.homes, scores)
            (at,) = np.nonzero(able & (scores == best[self.homes]))
            at = at[np.diff(self.homes[at], prepend=-1) > 0]  # the first of equals
            chosen[at] = True
            left[self.homes[at]] -= self.sizes[at]
        return chosen

    def score(self, tokens: np.ndarray, options: Options) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the function of scores for `choose`, not "random".

        ROUGE-1 F1 of two parts of a text is twice the number of their common tokens over the length
        of the text (Lin 2004, 2). So the best sentence adds most common tokens.

        Args:
          tokens: [sum(sizes)] int, of all sentences.
          options: `choose` is "lead", "independent" or "sequential".

        Returns:
          Which sentences are chosen, bool [n] -> scores [n].
        """
        if options.choose == "lead":
            return lambda chosen: -np.arange(len(chosen))
        sentences = np.repeat(np.arange(len(self.sizes)), self.sizes)
        pairs, counts = np.unique(sentences << 32 | tokens.astype(np.int64), return_counts=True)
        sentences, words = pairs >> 32, self.homes[pairs >> 32] << 32 | pairs & 0xFFFFFFFF
        words = np.unique(words, return_inverse=True)[1]  # number of each text's token
        totals, size = np.bincount(words, counts), len(self.sizes)

        def overlap(chosen: np.ndarray) -> np.ndarray:
            before = np.bincount(words, counts * chosen[sentences], len(totals))
            after = before[words] + counts
            added = np.minimum(after, totals[words] - after)
            added -= np.minimum(before, totals - before)[words]
            return np.bincount(sentences, added, size)

        alone = overlap(np.zeros(size, bool))
        return overlap if options.choose == "sequential" else lambda chosen: alone


def build(
    documents: Documents,
    *,
    specials: Specials,
    max_len: int,
    seed: int = 0,
    document_ids: np.ndarray | None = None,
    options: Options | None = None,
) -> Iterator[Examples]:
    """Yields texts and their chosen sentences as `formats.Format.build`.

    Raises:
      ValueError: `max_len` leaves no space, the system has no mask, or no document has two
        sentences.
    """
    del seed
    options, _ = options or Options(), specials.ids["mask"]
    assembly.room_for_text(specials, max_len, num_pieces=1, at_least=2)
    ids = assembly.select(documents, document_ids)
    counts, across = np.diff(documents.document_starts)[ids], options.across_documents
    if (counts.sum() if across else counts.max(initial=0)) < 2:
        raise ValueError(
            "gap_sentences needs two sentences in a document, or in all documents together with"
            " across_documents, and there are fewer; use another corpus, or the format text_noise"
        )
    room, longest = _room(max_len, options, specials), text_length(max_len, options)
    byte_offsets = assembly.count_bytes_before(documents)
    units = np.zeros(len(documents.tokens), np.uint8)
    documents = dataclasses.replace(documents, units=units)
    blocks = doc_sentences.string_together(documents, ids, longest, across_documents=bool(across))
    for block, at, ends in blocks:
        inside, homes = assembly.ranges(at, ends - at), np.repeat(np.arange(len(at)), ends - at)
        stops = np.minimum(block.offsets[ends], block.offsets[at] + longest)
        sizes = np.minimum(block.offsets[inside + 1], stops[homes]) - block.offsets[inside]
        shortest = np.full(len(at), longest)
        np.minimum.at(shortest, homes, sizes)
        usable = (ends - at > 1) & (shortest <= room)
        kept = usable[homes]
        first = np.asarray(documents.sentence_starts)[block.sentences[inside[kept]]]
        sentences = Sentences((np.cumsum(usable) - 1)[homes[kept]], sizes[kept], usable.sum())
        units[first] = OPENS
        if options.choose != "random":
            tokens = np.asarray(documents.tokens)[assembly.ranges(first, sentences.sizes)]
            chosen = sentences.choose(options.gap_rate, room, sentences.score(tokens, options))
            units[assembly.ranges(first[chosen], sentences.sizes[chosen])] |= CHOSEN
        opens = np.diff(sentences.homes, prepend=-1) > 0
        opens |= first != np.append(-1, first + sentences.sizes)[:-1]  # documents in between
        plan = assembly.Plan(
            np.bincount(sentences.homes[opens], minlength=sentences.num_texts),
            first[opens],
            np.add.reduceat(sentences.sizes, np.flatnonzero(opens)),
        )
        dropped = int(block.offsets[-1] - plan.length.sum())
        for chunk in assembly.assemble(documents, plan, Specials(), byte_offsets, dropped):
            chunk.ragged["gaps"] = chunk.ragged.pop("units")
            yield chunk


def _room(max_len: int, options: Options, specials: Specials) -> int:
    """Returns the most tokens of the chosen sentences of a text."""
    frame = len(specials.begin) + len(specials.end)
    return min(target_length(max_len, options) - len(specials.end), max_len - frame)


def corrupt(
    batch: dict[str, np.ndarray], *, specials: Specials, options: Options, max_len: int, **address
) -> dict[str, np.ndarray]:
    """Makes source and target of each text [B, T]."""
    text, gaps, lengths = batch["tokens"], batch["gaps"], batch["lengths"]
    is_text = np.arange(text.shape[1]) < lengths[:, None]
    opens, is_gap = (gaps & OPENS) > 0, (gaps & CHOSEN) > 0
    if options.choose == "random":
        homes, places = np.nonzero(opens)
        number = np.cumsum(opens).reshape(opens.shape) - 1  # sentence of each token
        sentences = Sentences(homes, np.bincount(number[is_text]), len(text))
        scores = draws.uniform(draws.streams(1, **address)[0, homes], places)
        room = _room(max_len, options, specials)
        chosen = sentences.choose(options.gap_rate, room, lambda _: scores)
        is_gap[is_text] = chosen[number[is_text]]
    begin, end, filled = specials.begin, specials.end, lengths > 0
    masks, is_kept = opens & is_gap, is_text & ~is_gap
    space = max_len - len(begin) - len(end) - masks.sum(axis=1, keepdims=True)
    in_source = masks | is_kept & (np.cumsum(is_kept, axis=1) <= space)
    source, width = np.where(masks, specials.ids["mask"], text), target_length(max_len, options)
    made = {name: values for name, values in batch.items() if not name.startswith("gaps")}
    made |= assembly.pack("source", source, in_source, filled, max_len, begin, end)
    return made | assembly.pack("tokens", text, is_gap, filled, width, end=end)
