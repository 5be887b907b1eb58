"""A folder in Hugging Face layout, opened and checked before anything big is read."""

import contextlib
import dataclasses
import json
import math
import pathlib
import re
from typing import Any

import numpy as np

from scalelab.interop import convert, matching, settings, texts
from scalelab.interop.rows import Architecture, Map
from scalelab.interop.tensors import Tensors, refuse_pickles
from scalelab.interop.texts import Texts
from scalelab.interop.transforms import Sizes

HUB_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*", "vocab*",
    "merges.txt", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Folder:
    """A checkpoint of others.

    Attributes:
      path: where it lies.
      config: its config.json.
      family: its map.
      architecture: which of the family's fits its tensors.
      fields: its sizes, by the names of rows.Field.ours.
      sizes: what transforms need of them.
      texts: its tokenizer.
      tensors: its tensors.
      names: name in the map -> name in its files.
      unused: names in the map of tensors that are left out.
      notes: what is left out, for the user.
    """

    path: pathlib.Path
    config: dict[str, Any]
    family: Map
    architecture: Architecture
    fields: dict[str, Any]
    sizes: Sizes
    texts: Texts
    tensors: Tensors
    names: dict[str, str]
    unused: tuple[str, ...]
    notes: tuple[str, ...]

    def dtypes(self) -> dict[str, str]:
        """Name in the map -> dtype of the tensors that are not float32 in the files."""
        rows = self.family.rows(self.architecture)
        wanted = [*convert.names(rows, self.sizes), *self.unused]
        found = {name: self.tensors.dtype(self.names[name]) for name in wanted}
        return {name: dtype for name, dtype in found.items() if dtype != "float32"}

    def read(self, name: str) -> np.ndarray:
        """The tensor of a name in the map."""
        return self.tensors.read(self.names[name])

    @property
    def num_classes(self) -> int | None:
        """Scores of its classifier."""
        if not self.architecture.classifies:
            return None
        return self.tensors.shapes[self.names[self.family.classes]][0]

    def check_shapes(self, ours: dict[str, tuple[int, ...]]) -> None:
        """Refuses tensors whose shapes are not those that config.json leads to.

        Args:
          ours: shapes of our parameters.

        Raises:
          ValueError: with both shapes of each.
        """
        rows = self.family.rows(self.architecture)
        expected = convert.shapes(rows, ours, self.sizes)
        for name in expected:
            self.tensors.check_dtype(self.names[name])  # before shapes: packed values have others
        found = {name: self.tensors.shapes[self.names[name]] for name in expected}
        wrong = [
            f"{self.names[name]}: config.json makes it {list(shape)}, the file has"
            f" {list(found[name])}"
            for name, shape in expected.items()
            if found[name] != shape
        ]
        if wrong:
            raise ValueError(
                f"config.json contradicts the tensors in {self.path}:\n  " + "\n  ".join(wrong)
            )

    def check_tied(self) -> None:
        """Refuses copies that differ from what they are copies of.

        Raises:
          ValueError: they differ, though config.json does not call the head untied.
        """
        if self.architecture.untied:
            return
        untied = self.config.get("tie_word_embeddings") is False
        scores = {"mlm", "clm"} & {*self.architecture.serves} and not self.architecture.bare
        if untied and scores:
            raise ValueError(
                "config.json says tie_word_embeddings = false, but the files hold no table of"
                " scores beside the embedding table"
            )
        for name, original in self.family.tied:
            if name not in self.names or original not in self.names:
                continue
            if not np.array_equal(self.read(name), self.read(original)):
                raise ValueError(
                    f"{self.names[name]} differs from {self.names[original]}, but config.json does"
                    " not say that the head is untied (tie_word_embeddings = false)"
                )


def fetch(source: str) -> pathlib.Path:
    """The folder of a source: itself, or a copy of a model on the hub.

    Raises:
      ValueError: it is neither.
    """
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        refuse_pickles(str(path.parent), [path.name])
    if path.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source[0] in "./~":
        raise ValueError(
            f"no folder {source!r}: expected one with config.json and model.safetensors"
        )
    import huggingface_hub

    try:
        found = pathlib.Path(
            huggingface_hub.snapshot_download(source, allow_patterns=list(HUB_FILES))
        )
    except Exception as error:  # no network, no such model, no permission
        raise ValueError(
            f"no folder {source!r} here, and the hub gives no model of that name"
            f" ({type(error).__name__}: {texts.reason(error)})"
        ) from None
    if not any(found.glob("*.safetensors")):
        names: list[str] = []
        with contextlib.suppress(Exception):  # nobody to ask: what was fetched must do
            names = huggingface_hub.list_repo_files(source)
        refuse_pickles(source, names)
    return found


def open_folder(path: pathlib.Path) -> Folder:
    """Opens a folder in Hugging Face layout.

    Raises:
      ValueError: something in it is missing, damaged, contradictory or not supported.
    """
    config = _config(path)
    family = settings.family_of(config)
    read = settings.read(family, config)
    tensors, fields = Tensors(path), read.fields
    _check_sizes(fields, tensors)
    found = texts.read(path)
    notes = list(read.notes)
    if found.vocab_size > fields["vocab_size"]:
        raise ValueError(
            f"config.json has vocab_size = {fields['vocab_size']}, but the tokenizer beside it has"
            f" ids up to {found.vocab_size - 1}: they do not belong together"
        )
    if found.vocab_size < fields["vocab_size"]:
        notes.append(
            f"vocabulary cut from {fields['vocab_size']} to {found.vocab_size} rows: the tokenizer"
            " gives no other id"
        )
    sizes = Sizes(
        num_heads=fields["num_heads"],
        num_layers=fields["num_layers"],
        vocab_size=found.vocab_size,
        vocab_rows=fields["vocab_size"],
        num_segments=fields.get("num_segments", 1),
    )
    architecture, names, unused = matching.match(family, config, tensors, sizes)
    notes += [f"{', '.join(left)}: left out, {why}" for why, left in unused.items() if left]
    left_out = tuple(name for left in unused.values() for name in left)
    return Folder(
        path,
        config,
        family,
        architecture,
        fields,
        sizes,
        found,
        tensors,
        names,
        left_out,
        tuple(notes),
    )


def _check_sizes(fields: dict[str, Any], tensors: Tensors) -> None:
    """Refuses sizes far beyond the tensors, before any array is made of them."""
    width, num_layers = fields["width"], fields["num_layers"]
    by_layer = width * (4 * width + 2 * fields["ffn_width"])
    described = width * (fields["vocab_size"] + fields["max_len"]) + num_layers * by_layer
    held = sum(map(math.prod, tensors.shapes.values()))
    if num_layers > len(tensors.shapes) or described > 8 * held + 1_000_000:
        sizes = ("width", "num_layers", "ffn_width", "vocab_size", "max_len")
        said = ", ".join(f"{name} {fields[name]:,}" for name in sizes)
        raise ValueError(
            f"config.json contradicts the tensors: its sizes ({said}) make {described:,} values or"
            f" more, the files hold {held:,} in {len(tensors.shapes)} tensors"
        )


def _config(path: pathlib.Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        inside = ", ".join(sorted(p.name + "/" * p.is_dir() for p in path.iterdir())[:8])
        inside = inside or "nothing"
        raise ValueError(f"{path} has no config.json (it holds {inside}): no Hugging Face folder")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); fetch it again") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file}: expected an object, got {type(config).__name__}")
    if {"system", "machine"} <= config.keys():
        raise ValueError(
            f"{path} is a run folder of scalelab already; to write it in Hugging Face layout:"
            f" python -m scalelab.interop.hf export {path} --to=DIR"
        )
    return config
