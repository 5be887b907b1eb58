"""Tokenizers, trained on the training split and kept in Hugging Face layout.

`AutoTokenizer.from_pretrained(directory)` encodes exactly as `Tokenizer.load(directory)` does. Both
read text that spells a special token ("[MASK]") as ordinary text.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, processors

import scalelab.data._vocabulary as _vocabulary
from scalelab.formats import Frame, Specials
from scalelab.helpers.files import reading
from scalelab.helpers.names import SpecialIds, check_names

VERSION = "1"  # version of the training; part of the cache's key
KINDS = ("wordpiece", "wordpiece_likelihood", "bytebpe", "unigram", "bpe", "word", "char")
# First character of a word's first piece: in bytebpe, in unigram, in char.
SPACES = ("Ġ", "▁", " ")
UNKNOWN = "[UNK]"  # for systems without a token for unknown text
IN_TEXT = {"lstrip": True}  # options of a special token that text may contain
FILES = ("tokenizer.json", "special_tokens_map.json")  # they determine the ids of a text
ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")  # besides sentinel_0, sentinel_1, ...


@dataclasses.dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer to train.

    The kinds are:

      wordpiece: BERT's pieces, learned by merging the most frequent pair, as in Hugging Face
      wordpiece_likelihood: BERT's pieces, learned by the likelihood, WordPiece's own rule
      bytebpe: GPT-2 and RoBERTa
      unigram: SentencePiece
      bpe: GPT; words are split at white space and punctuation; `</w>` ends a word's last piece
      word: the most frequent words and punctuation marks, split as for BERT; others are unknown
      char: the most frequent characters, spaces included; others are unknown

    All but bytebpe have a token for unknown text, after the special tokens if those lack it.
    """

    kind: str
    vocab_size: int  # number of pieces, special tokens included
    lowercase: bool  # letters lose their case (and, except for bytebpe and char, their accents)
    special_tokens: tuple[tuple[str, str], ...]  # role and text; their ids are 0, 1, ...
    begin: tuple[str, ...] = ()  # special tokens before the first segment
    between: tuple[str, ...] = ()  # special tokens between two segments
    end: tuple[str, ...] = ()  # special tokens after the last segment

    def __post_init__(self):
        check_names([self.kind], KINDS, "unknown tokenizer.kind")
        roles = dict(self.special_tokens)
        others = [role for role in roles if role not in ROLES]
        assert others == [f"sentinel_{k}" for k in range(len(others))], roles
        assert {*self.begin, *self.between, *self.end} <= set(roles.values()), self

    @property
    def roles(self) -> dict[str, str]:
        """Role -> text of its special token, in the order of their ids."""
        own = dict(self.special_tokens)
        return own if self.kind == "bytebpe" else own | {"unk": own.get("unk", UNKNOWN)}


class Tokenizer:
    """A trained tokenizer; `special_ids` is role -> id, such as {"pad": 0, "mask": 4}."""

    def __init__(self, backend: tokenizers.Tokenizer, roles: dict[str, str]):
        backend.encode_special_tokens = True  # a special token's spelling in text is text
        self._backend = backend
        self.special_ids = {role: backend.token_to_id(text) for role, text in roles.items()}
        self.vocab_size = backend.get_vocab_size()

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Tokenizer":
        """Loads the folder that `train` wrote; raises Unreadable if a file is damaged."""
        path, names = (Path(directory) / name for name in FILES)
        with reading(path):
            content = path.read_text(encoding="utf-8", errors="replace")
            backend = tokenizers.Tokenizer.from_str(content)
        with reading(names):
            roles = {
                # Other libraries write a token as an object.
                role.removesuffix("_token"): token["content"] if isinstance(token, dict) else token
                for role, token in json.loads(names.read_text(encoding="utf-8")).items()
            }
            absent = [text for text in roles.values() if backend.token_to_id(text) is None]
        if absent:
            raise ValueError(f"{path} has no piece {absent[0]!r}, which {names.name} names")
        return cls(backend, roles)

    @property
    def digest(self) -> str:
        """SHA-256 of the special ids and the backend, which determine a text's ids: 64 digits."""
        return hashlib.sha256(f"{self.special_ids}{self._backend.to_str()}".encode()).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """Encodes one text without special tokens: ids [n] int32."""
        return np.asarray(self._backend.encode(text, add_special_tokens=False).ids, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts without special tokens, each into ids [n] int32."""
        ids, starts = self.encode_flat(texts)
        return np.split(ids, starts[1:-1]) if len(texts) else []

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes texts: all ids [n] int32, and each text's start [len(texts) + 1] int64."""
        encoded = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        pieces = [found.ids for found in encoded]
        starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return np.fromiter(itertools.chain.from_iterable(pieces), np.int32, starts[-1]), starts

    def encode_aligned(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Encodes texts, with the characters and the word of each piece.

        Returns:
          Three int64 arrays: each text's start [len(texts) + 1]; ids [n]; and [3, n] with, for each
          piece, its first character in the text, the character after its last, and the index of
          its word.
        """
        encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
        starts = np.cumsum([0, *(len(found.ids) for found in encoded)], dtype=np.int64)
        pieces = [
            [*zip(found.ids, *zip(*found.offsets, strict=True), found.word_ids, strict=True)]
            for found in encoded
        ]
        flat = np.array([*itertools.chain.from_iterable(pieces)], np.int64).reshape(-1, 4)
        return starts, flat.T[0], flat.T[1:]

    def encode_special(self, text: str, roles: Iterable[str]) -> np.ndarray:
        """Encodes a text with special tokens in it, such as "[MASK]": ids [n] int32.

        Only those of `roles` are recognized; others are encoded as plain text. White space before a
        recognized token belongs to it, as it belongs to the word that a mask replaces.
        """
        backend = self._reads_special(frozenset(self.special_ids[role] for role in roles))
        return np.asarray(backend.encode(text, add_special_tokens=False).ids, np.int32)

    @functools.lru_cache(maxsize=4)  # noqa: B019  # few tokenizers are opened
    def _reads_special(self, ids: frozenset[int]) -> tokenizers.Tokenizer:
        """Returns a copy of the tokenizer that recognizes the special tokens `ids` in text."""
        content = json.loads(self._backend.to_str())
        for added in content["added_tokens"]:
            if added["id"] in ids:
                # Tokens that are marked special would be encoded as plain text (below).
                added |= IN_TEXT | {"special": False}
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        backend.encode_special_tokens = True
        return backend

    @functools.cached_property
    def joins(self) -> bytes:
        """One byte per id, which tells how the piece joins its neighbors.

        1: the piece continues the word of the piece before it. 2: the next piece continues its word
        (`bpe` marks the last piece of a word). 0: neither.
        """
        model, pieces = self._backend.model, map(self.token, range(self.vocab_size))
        if prefix := getattr(model, "continuing_subword_prefix", None):
            return bytes(piece.startswith(prefix) for piece in pieces)
        if isinstance(model, models.WordLevel):
            return bytes(self.vocab_size)
        if suffix := getattr(model, "end_of_word_suffix", None):
            return bytes(2 * (not piece.endswith(suffix)) for piece in pieces)
        return bytes(not piece.startswith(SPACES) for piece in pieces)

    @functools.cached_property
    def capitals(self) -> bytes:
        """One byte per id: 1 if the piece's first letter is a capital, else 0."""
        special = self.special_ids.values()
        pieces = ("" if i in special else self.decode([i]) for i in range(self.vocab_size))
        return bytes(next(filter(str.isalpha, piece), "").isupper() for piece in pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, special tokens spelled out."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def count_unknown(self, ids: np.ndarray) -> int:
        """Returns how many of ids [n] stand for unknown text."""
        return int((ids == self.special_ids.get("unk", -1)).sum())

    def token(self, token_id: int) -> str:
        """Returns a piece of the vocabulary by its id; raises ValueError for an unknown id."""
        piece = self._backend.id_to_token(int(token_id))
        if piece is None:
            raise ValueError(f"no token has id {token_id}; there are {self.vocab_size}")
        return piece

    def token_id(self, text: str) -> int:
        """Returns the id of a piece that is in the vocabulary."""
        return self._backend.token_to_id(text)

    def with_added(self, texts: Sequence[str]) -> "Tokenizer":
        """Returns a copy with special tokens appended to the vocabulary, in this order."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.add_special_tokens(list(texts))
        roles = {role: self.token(i) for role, i in self.special_ids.items()}
        return Tokenizer(backend, roles)

    def save(self, source: Path, directory: Path) -> None:
        """Writes the tokenizer of the folder `source` with the added tokens, in the same layout."""
        shutil.copytree(source, directory, dirs_exist_ok=True)
        self._backend.save(str(directory / "tokenizer.json"))

    def specials(self, texts: Sequence[Sequence[str]], start: str | None = None) -> Specials:
        """Returns the special ids and the frame of a run.

        Args:
          texts: the system's FRAME. An imported tokenizer without one of its tokens keeps its own
            frame.
          start: the system's `START`, the role of the token that begins a text after a source; None
            if the model has no source.
        """
        parts = [tuple(self._backend.token_to_id(text) for text in part) for part in texts]
        known = all(i is not None for part in parts for i in part)
        frame = parts if known else dataclasses.astuple(self.frame())
        ids = SpecialIds(self.special_ids, start)
        return Specials(*frame, ids=ids, vocab_size=self.vocab_size)

    def frame(self) -> Frame:
        """Returns the special ids before, between and after two segments."""
        pair = self._backend.encode("a", "a", add_special_tokens=True)
        text = [place for place, which in enumerate(pair.sequence_ids) if which is not None]
        second = pair.sequence_ids.index(1)
        last_of_first = text[text.index(second) - 1]
        return Frame(
            tuple(pair.ids[: text[0]]),
            tuple(pair.ids[last_of_first + 1 : second]),
            tuple(pair.ids[text[-1] + 1 :]),
        )


def digest(directory: Path) -> str:
    """Returns the SHA-256 of a folder's FILES, which determine the ids of a text: 64 digits."""
    files = [directory / name for name in FILES]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def train(spec: TokenizerSpec, texts: Iterable[str], directory: Path) -> None:
    """Trains a tokenizer and writes it in Hugging Face layout.

    Equal texts in equal order give equal files.

    Args:
      spec: kind, vocabulary size and special tokens.
      texts: documents: their sentences, joined by spaces; iterated more than once.
      directory: an existing folder.

    Raises:
      ValueError: the vocabulary is too large for the texts, or too small for their characters.
    """
    backend = _vocabulary.train(spec, texts)
    backend.add_special_tokens([*spec.roles.values()])
    size = backend.get_vocab_size()
    if size < spec.vocab_size:
        raise ValueError(
            f"the corpus supports a {spec.kind} vocabulary of at most {size} pieces, not "
            f"{spec.vocab_size}; set --config.tokenizer.vocab_size={size} or less, or take a "
            "larger corpus"
        )
    if size > spec.vocab_size:
        raise ValueError(_vocabulary.too_small(spec, size))
    if spec.begin or spec.between or spec.end:
        ids = {text: i for i, text in enumerate(spec.roles.values())}
        backend.post_processor = make_template(spec.begin, spec.between, spec.end, ids)
    write(backend, spec.roles, directory)


def make_template(
    begin: Sequence[str], between: Sequence[str], end: Sequence[str], ids: Mapping[str, int]
) -> processors.TemplateProcessing:
    """Returns the postprocessor that adds special tokens to a text or a pair.

    Args:
      begin: texts of the special tokens before the first text.
      between: those between two texts.
      end: those after the last text.
      ids: text -> id of each of them.
    """
    return processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *between, "$B:1", *(f"{text}:1" for text in end)],
        special_tokens=list(ids.items()),
    )


def write(
    backend: tokenizers.Tokenizer,
    roles: Mapping[str, str],
    directory: Path,
    **settings: bool | int | str | list[str],
) -> None:
    """Writes a tokenizer in Hugging Face layout into an existing folder.

    `roles` gives the text of each special token; `settings` are more fields of
    tokenizer_config.json.
    """
    named = {f"{role}_token": text for role, text in roles.items()}
    config = named | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    contents = (json.loads(backend.to_str()), named, config | settings)
    for name, content in zip((*FILES, "tokenizer_config.json"), contents, strict=True):
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")
