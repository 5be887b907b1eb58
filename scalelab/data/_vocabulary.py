"""Trains vocabularies with Hugging Face `tokenizers`; equal input gives equal files.

The library gives the first pieces (single characters with their `##` or `</w>`) ids in the order of
a hash map with a random seed, and breaks ties between merges by id. This module finds these pieces
itself and passes them in a fixed order, as if they were special tokens.

The library lacks WordPiece's own rule, which makes the merge that raises the likelihood of the text
most (Schuster and Nakajima 2012, "Japanese and Korean voice search", section 2). The language model
is here a unigram model: one probability for each piece. With h(x) = x log x, pieces of frequencies
f and sum N give the text the log-likelihood sum h(f) - h(N). A merge of a pair with n occurrences
changes the log-likelihood by

  h(n) - h(f(a)) + h(f(a) - n) - h(f(b)) + h(f(b) - n) + h(N) - h(N - n).

The same merges make all pieces of a text, so no pair spells an existing piece.

For rare pairs the gain of one occurrence is about log n N / (f(a) f(b)). The score n / (f(a) f(b)),
which many descriptions give for the rule, prefers rare pieces and splits frequent words.
"""

import collections
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

if TYPE_CHECKING:
    from scalelab.data.tokenizers import TokenizerSpec

# Number of characters that are pieces; rarer ones become unknown, as in BERT's vocabularies.
MIN_ALPHABET, MAX_ALPHABET = 100, 1000
ALPHABET_SHARE = 0.1  # share of the vocabulary, between these bounds
WORD_END = "</w>"
CONTINUATION = "##"  # begins a piece that goes on with a word
MIN_FREQUENCY = 2  # a pair seen once makes no piece
LONGEST = 100  # characters of a word; to the library's WordPiece, longer ones are unknown


def train(spec: "TokenizerSpec", texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Trains the library's tokenizer, without special tokens; iterates over `texts` up to twice.

    Raises:
      ValueError: the texts have more characters than the vocabulary holds.
    """
    if spec.kind in ("word", "char"):
        return _train_undivided(spec, texts)
    kind, special, unk = spec.kind, [*spec.roles.values()], spec.roles.get("unk")
    shape, decoder = _shape(spec), decoders.ByteLevel()
    options = {"vocab_size": spec.vocab_size, "show_progress": False}
    if kind == "unigram":
        decoder = decoders.Metaspace(prepend_scheme="always")
        needed = 1 + len(special) + len(alphabet(texts, shape["normalizer"]))
        if spec.vocab_size < needed:
            raise ValueError(too_small(spec, needed))
        trainer = trainers.UnigramTrainer(special_tokens=special, unk_token=unk, **options)
        made = _train_model(models.Unigram(), shape, trainer, texts)
        model = models.Unigram(_canonical(made["vocab"], len(special)), unk_id=made["unk_id"])
    elif kind == "bytebpe":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        options |= {"min_frequency": MIN_FREQUENCY, "initial_alphabet": letters}
        trainer = trainers.BpeTrainer(special_tokens=special, **options)
        made = _train_model(models.BPE(), shape, trainer, texts)
        model = models.BPE(made["vocab"], [tuple(pair) for pair in made["merges"]])
    else:
        limit = min(MAX_ALPHABET, max(MIN_ALPHABET, int(ALPHABET_SHARE * spec.vocab_size)))
        letters = alphabet(texts, shape["normalizer"], limit)
        options |= {"min_frequency": MIN_FREQUENCY, "initial_alphabet": letters}
        options |= {"limit_alphabet": len(letters)}
        if kind == "bpe":
            decoder = decoders.BPEDecoder(WORD_END)
            suffix = {"end_of_word_suffix": WORD_END}
            first = [letter + WORD_END for letter in letters]
            trainer = trainers.BpeTrainer(special_tokens=special + first, **suffix, **options)
            made = _train_model(models.BPE(unk_token=unk, **suffix), shape, trainer, texts)
            merges = [tuple(pair) for pair in made["merges"]]
            model = models.BPE(made["vocab"], merges, unk_token=unk, **suffix)
        else:
            decoder = decoders.WordPiece(CONTINUATION, cleanup=False)
            first = [CONTINUATION + letter for letter in letters if _continues(letter, shape)]
            if kind == "wordpiece":
                trainer = trainers.WordPieceTrainer(special_tokens=special + first, **options)
                made = _train_model(models.WordPiece(unk_token=unk), shape, trainer, texts)
                vocab = made["vocab"]
            else:
                known = special + first + letters
                learned = learn(_words(texts, shape, letters))
                known += itertools.islice(learned, max(spec.vocab_size - len(known), 0))
                vocab = {piece: place for place, piece in enumerate(known)}
            prefix = {"continuing_subword_prefix": CONTINUATION}
            model = models.WordPiece(vocab, unk_token=unk, **prefix)
    return _assemble(model, shape | {"decoder": decoder})


def _train_undivided(spec: "TokenizerSpec", texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Trains a vocabulary of words, or of characters: BPE without merges."""
    shape, special, unk = _shape(spec), [*spec.roles.values()], spec.roles["unk"]
    if spec.kind == "word":
        options = {"vocab_size": spec.vocab_size, "show_progress": False}
        trainer = trainers.WordLevelTrainer(special_tokens=special, **options)
        made = _train_model(models.WordLevel(), shape, trainer, texts)
        return _assemble(models.WordLevel(made["vocab"], unk_token=unk), shape)
    limit = max(spec.vocab_size - len(special), 0)
    known = special + alphabet(texts, shape["normalizer"], limit, spaces=True)
    model = models.BPE({char: i for i, char in enumerate(known)}, [], unk_token=unk)
    return _assemble(model, shape | {"decoder": decoders.Fuse()})


Part = normalizers.Normalizer | pre_tokenizers.PreTokenizer | decoders.Decoder


def _shape(spec: "TokenizerSpec") -> dict[str, Part]:
    """Returns the normalizer, where there is one, and the pre-tokenizer of a kind of tokenizer.

    Unigram's pieces may hold any character, so the first characters of special tokens are split
    off: a text that spells a special token must not get its id.
    """
    if spec.kind == "bytebpe":
        pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        lower = {"normalizer": normalizers.Lowercase()} if spec.lowercase else {}
        return {"pre_tokenizer": pre} | lower
    if spec.kind == "char":  # a word begins with the space before it
        pre = pre_tokenizers.Split(" ", "merged_with_next")
        lower = normalizers.Sequence([normalizers.Lowercase()] * spec.lowercase)
        return {"pre_tokenizer": pre, "normalizer": lower}
    if spec.kind == "unigram":
        form = [normalizers.NFKC()]
        if spec.lowercase:
            form += [
                normalizers.NFD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.NFC(),
            ]
        first = sorted({text[0] for text in spec.roles.values()})
        pre = [pre_tokenizers.Metaspace(prepend_scheme="always")]
        pre += [pre_tokenizers.Split(char, "isolated") for char in first]
        return {
            "normalizer": normalizers.Sequence(form),
            "pre_tokenizer": pre_tokenizers.Sequence(pre),
        }
    return {
        "normalizer": normalizers.BertNormalizer(lowercase=spec.lowercase),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
    }


def _assemble(model: models.Model, parts: dict[str, Part]) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _train_model(
    model: models.Model, shape: dict[str, Part], trainer: trainers.Trainer, texts: Iterable[str]
) -> dict:
    """Returns the trained model as the library's JSON."""
    trained = _assemble(model, shape)
    trained.train_from_iterator(iter(texts), trainer)
    return json.loads(trained.to_str())["model"]


def _words(texts: Iterable[str], shape: dict[str, Part], letters: Sequence[str]) -> dict[str, int]:
    """Returns the frequencies of the words that the library's WordPiece can split."""
    found: collections.Counter[str] = collections.Counter()
    normalizer, pre = shape["normalizer"], shape["pre_tokenizer"]
    for text in texts:
        found.update(word for word, _ in pre.pre_tokenize_str(normalizer.normalize_str(text)))
    able = set(letters)
    return {word: n for word, n in found.items() if len(word) <= LONGEST and able.issuperset(word)}


def _canonical(vocab: list[list], num_special: int) -> list[tuple[str, float]]:
    """Removes from unigram's scores the parts that depend on the order of a hash map.

    The library gives characters that no piece needs the lowest score plus a multiple of 0.0001, in
    that order: all of them get the lowest. Sums in that order decide the last digits: scores keep
    four decimals.
    """
    special, rest = vocab[:num_special], vocab[num_special:]
    lowest = min((score for _, score in rest), default=0.0)

    def settled(piece: str, score: float) -> float:
        above = (score - lowest) / 1e-4
        spare = len(piece) == 1 and above < len(rest) and abs(above - round(above)) < 1e-6
        return round(lowest if spare else score, 4)

    made = sorted(((p, settled(p, s)) for p, s in rest), key=lambda entry: (-entry[1], entry[0]))
    return [(piece, score) for piece, score in special] + made


def too_small(spec: "TokenizerSpec", needed: int) -> str:
    """Returns the message about a vocabulary that cannot hold its characters."""
    return (
        f"a {spec.kind} vocabulary of this corpus needs at least {needed} pieces for its characters"
        f" and special tokens, not {spec.vocab_size}; set --config.tokenizer.vocab_size={needed} or"
        " more"
    )


def alphabet(
    texts: Iterable[str],
    normalizer: normalizers.Normalizer,
    limit: int | None = None,
    *,
    spaces: bool = False,
) -> list[str]:
    """Returns the most frequent characters after normalization, sorted.

    Args:
      texts: the texts.
      normalizer: of the tokenizer.
      limit: number of characters; None: all.
      spaces: whether white space counts as characters.
    """
    counts = np.zeros(0x110000, np.int64)
    for text in texts:
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        found = np.bincount(points)
        counts[: len(found)] += found
    normal: dict[str, int] = {}
    for point in np.flatnonzero(counts):
        for char in normalizer.normalize_str(chr(point)):  # one character at a time, as in training
            if spaces or not char.isspace():
                normal[char] = normal.get(char, 0) + int(counts[point])
    return sorted(sorted(normal, key=lambda char: (-normal[char], char))[:limit])


def _continues(letter: str, shape: dict[str, Part]) -> bool:
    """Returns True if a character can stand inside a word: punctuation and Chinese cannot."""
    text = shape["normalizer"].normalize_str("a" + letter)
    return len(shape["pre_tokenizer"].pre_tokenize_str(text)) == 1


# --- WordPiece by its own rule ------------------------------------------------------------------


def _h(counts: np.ndarray | float) -> np.ndarray:
    return counts * np.log(np.maximum(counts, 1))


def _double_if_full(values: np.ndarray, size: int) -> np.ndarray:
    full = size > values.shape[-1]
    return np.append(values, np.zeros_like(values), axis=-1) if full else values


class Pieces:
    """The words as pieces, with the frequencies of pieces and pairs kept up to date."""

    def __init__(self, words: Mapping[str, int]) -> None:
        """Splits words, given with their frequencies, into characters."""
        self.texts: list[str] = []  # text of each piece, by id
        self._ids: dict[str, int] = {}
        self._frequency = np.zeros(1 << 16)
        self._weights = list(words.values())
        # Each pair of ids has a slot; a pair without occurrences frees its slot for another pair.
        self._slots: dict[tuple[int, int], int] = {}
        self._free: list[int] = []
        self._where: list[set[int]] = []  # words with the pair of a slot
        self._pairs = np.zeros((3, 1 << 16), np.int64)  # left, right, occurrences
        self.rows = [  # ids of the pieces of each word
            [self._piece(CONTINUATION * (k > 0) + char) for k, char in enumerate(word)]
            for word in words
        ]
        for word in range(len(self.rows)):
            self._count(word, 1)

    def _piece(self, text: str) -> int:
        """Returns the id of a piece; a new piece gets the next id."""
        if text not in self._ids:
            self._ids[text] = len(self.texts)
            self.texts.append(text)
            self._frequency = _double_if_full(self._frequency, len(self.texts))
        return self._ids[text]

    def _count(self, word: int, sign: int) -> None:
        """Adds a word's pieces and pairs to the frequencies; subtracts them for sign = -1."""
        row, weight = self.rows[word], sign * self._weights[word]
        for piece in row:
            self._frequency[piece] += weight
        last = None
        for pair in zip(row, row[1:], strict=False):
            if pair == last and pair[0] == pair[1]:  # "aaa" has one pair "aa" to merge
                last = None
                continue
            last = pair
            slot = self._slots.get(pair)
            if slot is None:
                slot = self._slots[pair] = self._new_slot(pair)
            self._pairs[2, slot] += weight
            if sign > 0:
                self._where[slot].add(word)
            elif not self._pairs[2, slot]:
                del self._slots[pair]
                self._where[slot].clear()
                self._free.append(slot)

    def _new_slot(self, pair: tuple[int, int]) -> int:
        if not self._free:
            self._free.append(len(self._where))
            self._where.append(set())
            self._pairs = _double_if_full(self._pairs, len(self._where))
        slot = self._free.pop()
        self._pairs[:, slot] = *pair, 0
        return slot

    def gains(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of MIN_FREQUENCY or more: ids [2, n]; and their gains in nats [n].

        Occurrences do not overlap, so a merge of "aa" takes two pieces each.
        """
        live = np.flatnonzero(self._pairs[2, : len(self._where)] >= MIN_FREQUENCY)
        left, right, pairs = self._pairs[:, live]
        a, b, total = self._frequency[left], self._frequency[right], self._frequency.sum()
        lost = _h(a) - _h(a - pairs) + _h(b) - _h(b - pairs)
        lost = np.where(left == right, _h(a) - _h(a - 2 * pairs), lost)
        return np.stack([left, right]), _h(pairs) - lost + _h(total) - _h(total - pairs)

    def merge(self, left: int, right: int) -> str:
        """Joins two pieces, given by their ids, wherever they are a pair; returns the new text."""
        text = self.texts[left] + self.texts[right].removeprefix(CONTINUATION)
        made = self._piece(text)
        for word in sorted(self._where[self._slots[left, right]]):
            old, row, k = self.rows[word], [], 0
            while k < len(old):
                joins = old[k] == left and k + 1 < len(old) and old[k + 1] == right
                row.append(made if joins else old[k])
                k += 1 + joins
            if len(row) < len(old):
                self._count(word, -1)
                self.rows[word] = row
                self._count(word, 1)
        return text


def learn(words: Mapping[str, int]) -> Iterator[str]:
    """Yields new pieces in the order of learning, given words with their frequencies."""
    made = Pieces(words)
    while len((found := made.gains())[1]):
        pairs, gains = found
        yield made.merge(*pairs[:, np.argmax(gains)].tolist())
