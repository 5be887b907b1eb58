"""Converts tokenizers in both directions; imports read whatever `AutoTokenizer` reads."""

import contextlib
import dataclasses
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import processors

from scalelab.data.tokenizers import MASK_IN_TEXT, ROLES, Tokenizer
from scalelab.helpers.files import write_text
from scalelab.helpers.names import brief

Frame = tuple[tuple[str, ...], ...]  # special tokens before, between and after the texts
FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
RUN_FILES = ("tokenizer.json", "special_tokens_map.json", "tokenizer_config.json")
MAX_MESSAGE = 500  # characters
KINDS = {"WordPiece": "wordpiece", "Unigram": "unigram", "BPE": "bpe"}


@dataclasses.dataclass(frozen=True)
class ImportedTokenizer:
    """The tokenizer of a folder in Hugging Face layout.

    Attributes:
      backend: its pipeline.
      roles: role -> text of the special token.
      kind: its kind, as in config.tokenizer.kind.
      lowercase: True if it lowercases texts.
    """

    backend: tokenizers.Tokenizer
    roles: dict[str, str]
    kind: str
    lowercase: bool

    @property
    def vocab_size(self) -> int:
        """The highest id plus one."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def save(self, directory: pathlib.Path) -> None:
        """Writes the files that data.tokenizers.train writes."""
        directory.mkdir(parents=True)
        self.backend.save(str(directory / "tokenizer.json"))
        named = {f"{role}_token": text for role, text in self.roles.items()}
        config = named | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        }
        _write_json(directory / "tokenizer_config.json", config)
        _write_json(directory / "special_tokens_map.json", named)


def read(folder: pathlib.Path) -> ImportedTokenizer:
    """Opens the tokenizer of a folder in Hugging Face layout.

    Raises:
      ValueError: there is none, or it cannot be read.
    """
    present = [name for name in FILES if (folder / name).is_file()]
    if not present or present in (["vocab.json"], ["merges.txt"]):
        raise ValueError(
            f"{folder} has no tokenizer (found {present[0] if present else 'none of its files'}):"
            " expected tokenizer.json, or vocab.txt, or vocab.json and merges.txt; write them with"
            " the tokenizer's save_pretrained"
        )
    import transformers

    try:
        with _without_warnings():
            found = transformers.AutoTokenizer.from_pretrained(str(folder))
        backend = tokenizers.Tokenizer.from_str(found.backend_tokenizer.to_str())
        roles = {role: getattr(found, f"{role}_token") for role in ROLES}
    except Exception as error:  # the library raises many types, and reads config.json too
        raise ValueError(
            f"the tokenizer in {folder}, or its config.json, cannot be read: {shorten(error)}"
        ) from None
    backend.no_truncation()
    backend.no_padding()
    roles = {r: t for r, t in roles.items() if t and backend.token_to_id(t) is not None}
    if backend.get_vocab(with_added_tokens=True).keys() <= set(roles.values()):
        raise ValueError(f"the tokenizer in {folder} is empty: it has only special tokens")
    content = json.loads(backend.to_str())
    kind = KINDS.get(content["model"]["type"])
    if kind is None:
        raise ValueError(
            f"the tokenizer in {folder} is a {content['model']['type']};"
            f" expected one of {', '.join(KINDS)}"
        )
    if kind == "bpe" and "ByteLevel" in json.dumps(content["pre_tokenizer"]):
        kind = "bytebpe"
    return ImportedTokenizer(backend, roles, kind, _lowercases(content["normalizer"]))


def load_run_tokenizer(directory: pathlib.Path) -> Tokenizer:
    """Loads the tokenizer of a run.

    Raises:
      ValueError: it is missing or damaged.
    """
    absent = [name for name in RUN_FILES if not (directory / name).is_file()]
    if absent:
        raise ValueError(f"the run has no tokenizer: {directory / absent[0]} is missing")
    try:
        return Tokenizer.load(directory)
    except Exception as error:  # the library raises many types, even Exception itself
        raise ValueError(f"the tokenizer in {directory} is damaged: {shorten(error)}") from None


def has_unknown_token(directory: pathlib.Path) -> bool:
    """Returns True if a run's tokenizer maps unknown text to one token; byte-level ones do not."""
    model = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    return model.get("unk_token") is not None or model.get("unk_id") is not None


def shorten(error: Exception) -> str:
    """Returns a library's error message on one line, shortened."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."


def _lowercases(normalizer: Mapping[str, Any] | None) -> bool:
    if not normalizer:
        return False
    return (
        normalizer.get("type") == "Lowercase"
        or bool(normalizer.get("lowercase"))
        or any(map(_lowercases, normalizer.get("normalizers", [])))
    )


def export(
    source: pathlib.Path,
    directory: pathlib.Path,
    *,
    special_as_text: bool,
    inputs: Sequence[str],
    max_len: int,
    frame: Frame | None,
    pad: str | None,
) -> None:
    """Writes a run's tokenizer for `AutoTokenizer`.

    Args:
      source: WORKDIR/tokenizer.
      directory: the folder to write into.
      special_as_text: True if special tokens inside a text are tokenized as plain text, as in
        training; False if users write "[MASK]" into texts.
      inputs: names of the model's inputs.
      max_len: number of positions of the model.
      frame: special tokens around the texts of a classifier; None: as in pre-training.
      pad: the token that pads batches, added if absent; None: the tokenizer's own.
    """
    for name in RUN_FILES:
        shutil.copyfile(source / name, directory / name)
    content, named, config = (_read_object(source / name) for name in RUN_FILES)
    if not special_as_text:
        for added in content["added_tokens"]:
            added |= MASK_IN_TEXT if added["content"] == config.get("mask_token") else {}
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    if frame is not None:
        backend.post_processor = _make_template(backend, frame)
    if pad is not None:
        backend.add_special_tokens([pad])
        config["pad_token"] = named["pad_token"] = pad
        _write_json(directory / "special_tokens_map.json", named)
    backend.no_truncation()
    backend.no_padding()
    backend.save(str(directory / "tokenizer.json"))
    config |= {
        "split_special_tokens": special_as_text,
        "model_input_names": list(inputs),
        "model_max_length": max_len,
    }
    _write_json(directory / "tokenizer_config.json", config)


def _make_template(backend: tokenizers.Tokenizer, frame: Frame) -> processors.TemplateProcessing:
    begin, between, end = (list(part) for part in frame)
    ids = {text: backend.token_to_id(text) for text in begin + between + end}
    absent = [text for text, i in ids.items() if i is None]
    if absent:
        raise ValueError(f"the tokenizer has no token {absent[0]!r}, which the classifier needs")
    return processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *between, "$B:1", *(f"{text}:1" for text in end)],
        special_tokens=list(ids.items()),
    )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the tokenizer is damaged: {path}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(
            f"the tokenizer is damaged: {path}: expected an object, got {brief(value)}"
        )
    return value


def _write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
