"""Converts tokenizers in both directions; imports read whatever `AutoTokenizer` reads."""

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence

import tokenizers

from scalelab.data.tokenizers import IN_TEXT, ROLES, make_template, write
from scalelab.helpers.files import reading
from scalelab.interop.mapping import Map

Frame = tuple[tuple[str, ...], ...]  # special tokens before, between and after the texts
KINDS = {"WordPiece": "wordpiece", "Unigram": "unigram", "BPE": "bpe", "WordLevel": "word"}


@dataclasses.dataclass(frozen=True)
class ImportedTokenizer:
    """A tokenizer in Hugging Face layout: its pipeline, and role -> text of its special tokens.

    Its kind is as in config.tokenizer.kind.
    """

    backend: tokenizers.Tokenizer
    roles: dict[str, str]
    kind: str
    lowercase: bool

    @property
    def vocab_size(self) -> int:
        """The highest id plus one."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def special_ids(self) -> dict[str, int]:
        """Role -> id of the special token."""
        return {role: self.backend.token_to_id(text) for role, text in self.roles.items()}

    def save(self, directory: pathlib.Path) -> None:
        """Writes the files that data.tokenizers.train writes."""
        directory.mkdir(parents=True)
        write(self.backend, self.roles, directory)


def read(folder: pathlib.Path, special_tokens: Sequence[tuple[str, str]] = ()) -> ImportedTokenizer:
    """Opens the tokenizer of a folder in Hugging Face layout.

    Args:
      folder: the folder.
      special_tokens: the system's (role, text); files name the roles of ROLES alone, so others,
        such as sentinels, are found by their text.

    Raises:
      ValueError: there is none, or it cannot be read.
    """
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "merges.txt")):
        raise ValueError(
            f"{folder} has no tokenizer: expected tokenizer.json, or vocab.txt, or vocab.json and"
            " merges.txt; write them with the tokenizer's save_pretrained"
        )
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # such as: PyTorch not found
    import transformers

    logging.getLogger("transformers").setLevel(logging.CRITICAL)  # warns about harmless fields
    with reading(folder / "tokenizer.json", " (or config.json)"):  # the library reads both
        found = transformers.AutoTokenizer.from_pretrained(str(folder))
        backend = tokenizers.Tokenizer.from_str(found.backend_tokenizer.to_str())
        named = {role: getattr(found, f"{role}_token") for role in ROLES}
    backend.no_truncation()
    backend.no_padding()
    roles = dict(special for special in special_tokens if special[0] not in ROLES) | named
    roles = {r: t for r, t in roles.items() if t and backend.token_to_id(t) is not None}
    sentinels = [(r, t) for r, t in special_tokens if r.startswith("sentinel_")]
    for place, (role, text) in enumerate(sentinels):
        if role not in roles and any(later in roles for later, _ in sentinels[place:]):
            raise ValueError(f"the tokenizer in {folder} lacks {text!r}, but has later sentinels")
    for role, same in (("cls", "bos"), ("sep", "eos")):
        if roles.get(role) == roles.get(same):
            roles.pop(role, None)
    content = json.loads(backend.to_str())
    model = content["model"]
    kind = KINDS.get(model["type"])
    if kind is None or backend.get_vocab(with_added_tokens=True).keys() <= set(roles.values()):
        raise ValueError(
            f"the tokenizer in {folder} is a {model['type']} of"
            f" {backend.get_vocab_size()} tokens, special ones included; expected one of"
            f" {', '.join(KINDS)} with at least one ordinary token"
        )
    if kind == "bpe" and "ByteLevel" in json.dumps(content["pre_tokenizer"]):
        kind = "bytebpe"
    elif kind == "bpe" and not (model["merges"] or model["end_of_word_suffix"]):
        kind = "char"
    normalizer = json.dumps(content["normalizer"])
    lowercase = '"Lowercase"' in normalizer or '"lowercase": true' in normalizer
    return ImportedTokenizer(backend, roles, kind, lowercase)


def export(
    source: pathlib.Path,
    directory: pathlib.Path,
    roles: Mapping[str, str],
    family: Map,
    frame: Frame | None,
    **settings: bool | int,
) -> None:
    """Writes a run's tokenizer for `AutoTokenizer`.

    Args:
      source: WORKDIR/tokenizer.
      directory: the folder to write into.
      roles: role -> text of the special token, added if absent.
      family: the map of the model's class.
      frame: special tokens around the texts of a classifier; None: as in pre-training.
      **settings: more fields of tokenizer_config.json. If `split_special_tokens` is False, "[MASK]"
        in a text is the mask token, and a sentinel is one token.
    """
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    in_text = {t for role, t in roles.items() if role == "mask" or role.startswith("sentinel_")}
    for added in content["added_tokens"]:
        if added["content"] in in_text and not settings["split_special_tokens"]:
            added |= IN_TEXT
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    backend.add_special_tokens(
        [text for text in roles.values() if backend.token_to_id(text) is None]
    )
    if frame is not None:
        ids = {text: backend.token_to_id(text) for part in frame for text in part}
        backend.post_processor = make_template(*frame, ids)
    if types := {roles[role]: i for role, i in family.token_types.items() if role in roles}:
        content = json.loads(backend.to_str())
        framed = content["post_processor"] or {}
        for piece in (*framed.get("single", ()), *framed.get("pair", ())):
            special = piece.get("SpecialToken", {"id": None})
            special["type_id"] = types.get(special["id"], special.get("type_id"))
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    more = {"padding_side": "left"} if family.pads_left else {}
    if {"mask", "bos", "eos"} <= roles.keys() and "cls" not in roles:
        # As RoBERTa's own, where others look for a frame.
        more |= {"cls_token": roles["bos"], "sep_token": roles["eos"]}
    write(backend, roles, directory, **more, model_input_names=list(family.inputs), **settings)
