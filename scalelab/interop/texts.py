"""Tokenizers, both ways: whatever `AutoTokenizer` makes of a folder becomes files of ours."""

import contextlib
import dataclasses
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import processors

from scalelab.data.tokenizers import MASK_IN_TEXT, ROLES, Tokenizer

FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
OF_RUN = ("tokenizer.json", "special_tokens_map.json", "tokenizer_config.json")
LONGEST = 500  # characters of a library's message
KINDS = {"WordPiece": "wordpiece", "Unigram": "unigram", "BPE": "bpe"}


@dataclasses.dataclass(frozen=True)
class Texts:
    """A tokenizer that was imported.

    Attributes:
      backend: its pipeline.
      roles: role -> text of its special tokens.
      kind: as in config.tokenizer.kind.
      lowercase: whether letters lose their case.
    """

    backend: tokenizers.Tokenizer
    roles: dict[str, str]
    kind: str
    lowercase: bool

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def save(self, directory: pathlib.Path) -> None:
        """Writes it as data.tokenizers.train writes its own."""
        directory.mkdir(parents=True)
        self.backend.save(str(directory / "tokenizer.json"))
        named = {f"{role}_token": text for role, text in self.roles.items()}
        config = named | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        }
        _write(directory / "tokenizer_config.json", config)
        _write(directory / "special_tokens_map.json", named)


def read(folder: pathlib.Path) -> Texts:
    """Opens the tokenizer of a folder in Hugging Face layout.

    Raises:
      ValueError: there is none, or it cannot be read.
    """
    there = [name for name in FILES if (folder / name).is_file()]
    if not there or there in (["vocab.json"], ["merges.txt"]):
        lacking = f"only {there[0]}" if there else "none of its files"
        raise ValueError(
            f"{folder} has no tokenizer ({lacking}): expected tokenizer.json, or vocab.txt, or"
            " vocab.json and merges.txt; save it there with its save_pretrained"
        )
    import transformers

    try:
        with _quiet():
            found = transformers.AutoTokenizer.from_pretrained(str(folder))
        backend = found.backend_tokenizer
        roles = {role: getattr(found, f"{role}_token") for role in ROLES}
    except Exception as error:  # whatever the library makes of damaged files
        culprit = "config.json" if _same_of_config(folder, error) else "the tokenizer"
        raise ValueError(f"{culprit} in {folder} cannot be read: {reason(error)}") from None
    backend = tokenizers.Tokenizer.from_str(backend.to_str())
    backend.no_truncation()
    backend.no_padding()
    roles = {r: t for r, t in roles.items() if t and backend.token_to_id(t) is not None}
    if backend.get_vocab(with_added_tokens=True).keys() <= set(roles.values()):
        raise ValueError(f"the tokenizer in {folder} is empty: it has no piece but special tokens")
    made = json.loads(backend.to_str())
    kind = KINDS.get(made["model"]["type"])
    if kind is None:
        raise ValueError(
            f"the tokenizer in {folder} is of the kind {made['model']['type']};"
            f" expected one of {', '.join(KINDS)}"
        )
    if kind == "bpe" and "ByteLevel" in json.dumps(made["pre_tokenizer"]):
        kind = "bytebpe"
    return Texts(backend, roles, kind, _lowers(made["normalizer"]))


def _same_of_config(folder: pathlib.Path, error: Exception) -> bool:
    """Whether it is of config.json, which the library reads too, that it complains."""
    import transformers

    try:
        with _quiet():
            transformers.AutoConfig.from_pretrained(str(folder))
    except Exception as other:
        return str(other) == str(error)
    return False


def load(directory: pathlib.Path) -> Tokenizer:
    """The tokenizer of a run.

    Raises:
      ValueError: it is missing or damaged.
    """
    absent = [name for name in OF_RUN if not (directory / name).is_file()]
    if absent:
        raise ValueError(f"the run has no tokenizer: {directory / absent[0]} is missing")
    try:
        return Tokenizer.load(directory)
    except Exception as error:  # the library raises what it has, even Exception itself
        raise ValueError(f"the tokenizer in {directory} is damaged: {reason(error)}") from None


def has_unknown(run: pathlib.Path) -> bool:
    """Whether a run's tokenizer reads as one piece what it does not know; bytes are all known."""
    content = json.loads((run / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    model = content["model"]
    return model.get("unk_token") is not None or model.get("unk_id") is not None


def reason(error: Exception) -> str:
    """What a library's error says, on one line, as far as a person reads it."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= LONGEST else said[:LONGEST] + " ..."


def _lowers(normalizer: Any) -> bool:
    if not normalizer:
        return False
    inner = normalizer.get("normalizers", [])
    return (
        normalizer.get("type") == "Lowercase"
        or bool(normalizer.get("lowercase"))
        or any(map(_lowers, inner))
    )


def export(
    source: pathlib.Path,
    directory: pathlib.Path,
    *,
    special_as_text: bool,
    inputs: Sequence[str],
    max_len: int,
    frame: tuple[tuple[str, ...], ...] | None,
    pad: str | None,
) -> None:
    """Copies a run's tokenizer for the use of others.

    Args:
      source: WORKDIR/tokenizer.
      directory: where to.
      special_as_text: whether text that spells a special token is text, as it is to us; where
        somebody is to write "[MASK]", it must not be.
      inputs: names of what the model is given.
      max_len: its positions.
      frame: texts of the special tokens before, between and after the texts of a classifier; None:
        as pre-training had them.
      pad: the token that pads batches, added where it is none yet; None: the tokenizer's own.
    """
    for name in OF_RUN:
        shutil.copyfile(source / name, directory / name)
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    named = json.loads((directory / "special_tokens_map.json").read_text(encoding="utf-8"))
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    if not special_as_text:
        for added in content["added_tokens"]:
            added |= MASK_IN_TEXT if added["content"] == config.get("mask_token") else {}
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    if frame is not None:
        backend.post_processor = _template(backend, frame)
    if pad is not None:
        backend.add_special_tokens([pad])
    # Saved anew in any case: what a pipeline adds of its own must not stay in the file.
    backend.no_truncation()
    backend.no_padding()
    backend.save(str(directory / "tokenizer.json"))
    config |= {
        "split_special_tokens": special_as_text,
        "model_input_names": list(inputs),
        "model_max_length": max_len,
    }
    if pad is not None:
        config["pad_token"] = named["pad_token"] = pad
        _write(directory / "special_tokens_map.json", named)
    _write(directory / "tokenizer_config.json", config)


def _template(backend: tokenizers.Tokenizer, frame: Any) -> processors.TemplateProcessing:
    begin, between, end = (list(part) for part in frame)
    second = ["$B:1", *(f"{text}:1" for text in end)]
    ids = {text: backend.token_to_id(text) for text in begin + between + end}
    absent = [text for text, i in ids.items() if i is None]
    if absent:
        raise ValueError(
            f"the tokenizer has no piece {absent[0]!r}, which frames a classifier's text"
        )
    return processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *between, *second],
        special_tokens=list(ids.items()),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The library warns of much that is no concern of ours."""
    before = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.getLogger("transformers").setLevel(before)


def _write(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
