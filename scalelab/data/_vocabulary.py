"""Trains vocabularies with Hugging Face `tokenizers`; equal input gives equal files.

The library gives the first pieces (single characters with their `##` or `</w>`) ids in the order of
a hash map with a random seed, and breaks ties between merges by id. This module finds these pieces
itself and passes them in a fixed order, as if they were special tokens.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

MIN_FREQUENCY = 2  # a pair seen once makes no piece
# Number of characters that are pieces; rarer ones become unknown, as in BERT's vocabularies.
MIN_ALPHABET, MAX_ALPHABET = 100, 1000
ALPHABET_SHARE = 0.1  # of the vocabulary, between these bounds
CONTINUATION = "##"
WORD_END = "</w>"


def parts(kind: str, lowercase: bool, special_texts: Iterable[str]) -> dict[str, Any]:
    """Returns normalizer, pre-tokenizer and decoder of a kind of tokenizer.

    Unigram's pieces may hold any character, so the first characters of special tokens are split
    off: a text that spells a special token must not get its id.
    """
    if kind == "bytebpe":
        return {
            "normalizer": normalizers.Lowercase() if lowercase else None,
            "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            "decoder": decoders.ByteLevel(),
        }
    if kind == "unigram":
        form = [normalizers.NFKC()]
        if lowercase:
            form += [
                normalizers.NFD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.NFC(),
            ]
        first = "".join(sorted({text[0] for text in special_texts}))
        return {
            "normalizer": normalizers.Sequence(form),
            "pre_tokenizer": pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Metaspace(prepend_scheme="always"),
                    *(pre_tokenizers.Split(char, "isolated") for char in first),
                ]
            ),
            "decoder": decoders.Metaspace(prepend_scheme="always"),
        }
    suffix = kind == "bpe"
    return {
        "normalizer": normalizers.BertNormalizer(lowercase=lowercase),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.BPEDecoder(WORD_END)
        if suffix
        else decoders.WordPiece(CONTINUATION, cleanup=False),
    }


def model(
    kind: str,
    vocab_size: int,
    special_texts: list[str],
    unk: str | None,
    texts: Iterable[str],
    shaped: dict[str, Any],
) -> models.Model:
    """Trains the model of a tokenizer.

    Args:
      kind: one of the kinds of `TokenizerSpec`.
      vocab_size: number of pieces to make, special ones included.
      special_texts: the special tokens, which take the first ids.
      unk: the special token for unknown text.
      texts: iterated over, for some kinds twice.
      shaped: from `parts`.
    """
    trained = tokenizers.Tokenizer(_TRAINEES[kind](unk))
    for name in ("normalizer", "pre_tokenizer"):
        if shaped[name] is not None:
            setattr(trained, name, shaped[name])
    trainer = _trainer(kind, vocab_size, special_texts, unk, texts, shaped)
    if kind == "unigram":
        needed = 1 + len(special_texts) + len(alphabet(texts, shaped["normalizer"]))
        if vocab_size < needed:
            raise ValueError(too_small(kind, vocab_size, needed))
    trained.train_from_iterator(iter(texts), trainer)
    made = json.loads(trained.to_str())["model"]
    if kind == "unigram":
        return models.Unigram(_canonical(made["vocab"], len(special_texts)), unk_id=made["unk_id"])
    if kind == "wordpiece":
        return models.WordPiece(
            made["vocab"], unk_token=unk, continuing_subword_prefix=CONTINUATION
        )
    merges = [tuple(pair) for pair in made["merges"]]
    if kind == "bpe":
        return models.BPE(made["vocab"], merges, unk_token=unk, end_of_word_suffix=WORD_END)
    return models.BPE(made["vocab"], merges)


_TRAINEES = {
    "wordpiece": lambda unk: models.WordPiece(unk_token=unk),
    "bpe": lambda unk: models.BPE(unk_token=unk, end_of_word_suffix=WORD_END),
    "bytebpe": lambda unk: models.BPE(),
    "unigram": lambda unk: models.Unigram(),
}


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


def _trainer(
    kind: str,
    vocab_size: int,
    special_texts: list[str],
    unk: str | None,
    texts: Iterable[str],
    shaped: dict[str, Any],
) -> Any:
    common = {"vocab_size": vocab_size, "show_progress": False}
    if kind == "unigram":
        return trainers.UnigramTrainer(special_tokens=special_texts, unk_token=unk, **common)
    common["min_frequency"] = MIN_FREQUENCY
    if kind == "bytebpe":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        return trainers.BpeTrainer(special_tokens=special_texts, initial_alphabet=letters, **common)
    limit = min(MAX_ALPHABET, max(MIN_ALPHABET, int(ALPHABET_SHARE * vocab_size)))
    letters = alphabet(texts, shaped["normalizer"], limit)
    common |= {"initial_alphabet": letters, "limit_alphabet": len(letters)}
    if kind == "bpe":
        ends = [letter + WORD_END for letter in letters]
        return trainers.BpeTrainer(
            special_tokens=special_texts + ends, end_of_word_suffix=WORD_END, **common
        )
    inner = [CONTINUATION + letter for letter in letters if _continues(letter, shaped)]
    return trainers.WordPieceTrainer(special_tokens=special_texts + inner, **common)


def too_small(kind: str, vocab_size: int, needed: int) -> str:
    """Returns the message about a vocabulary that cannot hold its characters."""
    return (
        f"a {kind} vocabulary of this corpus needs at least {needed} pieces for its characters "
        f"and special tokens, not {vocab_size}; set --config.tokenizer.vocab_size={needed} or more"
    )


def alphabet(
    texts: Iterable[str], normalizer: normalizers.Normalizer, limit: int | None = None
) -> list[str]:
    """Returns the `limit` most frequent characters after normalisation, sorted; no white space."""
    counts = np.zeros(0x110000, np.int64)
    for block in _blocks(texts, 1 << 22):
        points = np.frombuffer(block.encode("utf-32-le", "surrogatepass"), np.uint32)
        counts += np.bincount(points, minlength=len(counts))
    normal: dict[str, int] = {}
    for point in np.flatnonzero(counts):
        for char in normalizer.normalize_str(chr(point)):  # one character at a time, as in training
            if not char.isspace():
                normal[char] = normal.get(char, 0) + int(counts[point])
    return sorted(sorted(normal, key=lambda char: (-normal[char], char))[:limit])


def _continues(letter: str, shaped: dict[str, Any]) -> bool:
    """Returns True if a character can stand inside a word: punctuation and Chinese cannot."""
    text = shaped["normalizer"].normalize_str("a" + letter)
    return len(shaped["pre_tokenizer"].pre_tokenize_str(text)) == 1


def _blocks(texts: Iterable[str], size: int) -> Iterator[str]:
    block: list[str] = []
    length = 0
    for text in texts:
        block.append(text)
        length += len(text)
        if length > size:
            yield "\n".join(block)
            block, length = [], 0
    yield "\n".join(block)
