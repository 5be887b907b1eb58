"""Opens a folder in Hugging Face layout and checks it before anything large is read."""

import contextlib
import dataclasses
import math
import pathlib
import re
from typing import Any

import numpy as np

from scalelab.helpers.names import brief
from scalelab.interop import config_json, convert, tokenizer
from scalelab.interop.mapping import Architecture, Map
from scalelab.interop.tensors import Tensors, refuse_pickles
from scalelab.interop.tokenizer import ImportedTokenizer
from scalelab.interop.transforms import Sizes
from scalelab.runs.json_files import read_object

HUB_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*", "vocab*",
    "merges.txt", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
MAX_LISTED = 8


@dataclasses.dataclass(frozen=True)
class Folder:
    """A checkpoint in Hugging Face layout.

    Attributes:
      path: the folder.
      config: the content of config.json.
      family: its map.
      architecture: the architecture that fits its tensors.
      fields: its sizes, by the names of mapping.Field.ours.
      sizes: the sizes that transforms need.
      tokenizer: its tokenizer.
      tensors: its tensors.
      names: tensor name in the map -> tensor name in the files.
      unused: names in the map of tensors that our net does not use.
      remarks: what the import ignores, for the user.
    """

    path: pathlib.Path
    config: dict[str, Any]
    family: Map
    architecture: Architecture
    fields: dict[str, Any]
    sizes: Sizes
    tokenizer: ImportedTokenizer
    tensors: Tensors
    names: dict[str, str]
    unused: tuple[str, ...]
    remarks: tuple[str, ...]

    def dtypes(self) -> dict[str, str]:
        """Returns tensor name in the map -> dtype, without the tensors of float32."""
        rows = self.family.rows(self.architecture)
        wanted = [*convert.tensor_names(rows, self.sizes), *self.unused]
        found = {name: self.tensors.dtype(self.names[name]) for name in wanted}
        return {name: dtype for name, dtype in found.items() if dtype != "float32"}

    def read(self, name: str) -> np.ndarray:
        """Reads the tensor that the map calls `name`, as float32."""
        return self.tensors.read(self.names[name])

    @property
    def num_classes(self) -> int | None:
        """Number of scores of a classifier, None for other nets."""
        if not self.architecture.classifies:
            return None
        return self.tensors.shapes[self.names[self.family.classes]][0]

    def check_shapes(self, ours: dict[str, tuple[int, ...]]) -> None:
        """Refuses tensors whose shapes contradict config.json.

        Args:
          ours: shapes of our parameters.

        Raises:
          ValueError: with both shapes of each tensor.
        """
        wrong = []
        rows = self.family.rows(self.architecture)
        for name, expected in convert.tensor_shapes(rows, ours, self.sizes).items():
            stored = self.names[name]
            self.tensors.dtype(stored)  # first, since packed values have other shapes
            found = self.tensors.shapes[stored]
            if found != expected:
                wrong.append(
                    f"{stored}: config.json makes it {list(expected)}, the file has {list(found)}"
                )
        if wrong:
            raise ValueError(
                f"config.json contradicts the tensors in {self.path}:{_list_some(wrong)}"
            )

    def check_tied(self) -> None:
        """Refuses a second copy of a tensor that differs from the first.

        Raises:
          ValueError: they differ, and config.json does not call the head untied.
        """
        if self.architecture.untied:
            return
        untied = self.config.get("tie_word_embeddings") is False
        if untied and self.architecture.scores_tokens:
            raise ValueError(
                "config.json says tie_word_embeddings = false, but the files hold no second table"
                " beside the embedding table"
            )
        for name, original in self.family.tied:
            if name not in self.names or original not in self.names:
                continue
            if not np.array_equal(self.read(name), self.read(original)):
                raise ValueError(
                    f"{self.names[name]} differs from {self.names[original]}, but config.json does"
                    " not call the head untied (tie_word_embeddings = false)"
                )


def fetch(source: str) -> pathlib.Path:
    """Returns the folder of a source, downloading it if it is a name on the hub.

    Raises:
      ValueError: the source is neither a folder nor a model on the hub.
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
        download = huggingface_hub.snapshot_download(source, allow_patterns=list(HUB_FILES))
    except Exception as error:  # no network, no such model, no permission
        raise ValueError(
            f"no folder {source!r} here, and the hub gives no model of that name"
            f" ({type(error).__name__}: {tokenizer.shorten(error)})"
        ) from None
    found = pathlib.Path(download)
    if not any(found.glob("*.safetensors")):
        with contextlib.suppress(ConnectionError, OSError):  # the listing only improves the message
            refuse_pickles(source, huggingface_hub.list_repo_files(source))
    return found


def open_folder(path: pathlib.Path) -> Folder:
    """Opens a folder in Hugging Face layout.

    Raises:
      ValueError: something in it is missing, damaged, contradictory or not supported.
    """
    config = _read_config(path)
    family = config_json.find_map(config)
    fields, remarks = config_json.read_fields(family, config)
    tensors = Tensors(path)
    _check_sizes(fields, tensors)
    texts = tokenizer.read(path)
    if texts.vocab_size > fields["vocab_size"]:
        raise ValueError(
            f"config.json has vocab_size = {fields['vocab_size']}, but the tokenizer beside it has"
            f" ids up to {texts.vocab_size - 1}: they do not belong together"
        )
    if texts.vocab_size < fields["vocab_size"]:
        remarks.append(
            f"the vocabulary is cut from {fields['vocab_size']} to {texts.vocab_size} rows: the"
            " tokenizer uses no other id"
        )
    sizes = Sizes(
        num_heads=fields["num_heads"],
        num_layers=fields["num_layers"],
        vocab_size=texts.vocab_size,
        vocab_rows=fields["vocab_size"],
        num_segments=fields.get("num_segments", 1),
    )
    architecture, names, unused = _match(family, config, tensors, sizes)
    remarks += [f"ignored {', '.join(left)}: {why}" for why, left in unused.items() if left]
    return Folder(
        path,
        config,
        family,
        architecture,
        fields,
        sizes,
        texts,
        tensors,
        names,
        unused=tuple(name for left in unused.values() for name in left),
        remarks=tuple(remarks),
    )


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    if not (path / "config.json").is_file():
        inside = sorted(p.name + "/" * p.is_dir() for p in path.iterdir())
        raise ValueError(f"{path} has no config.json (it holds {brief(inside)})")
    config = read_object(path / "config.json") or {}
    if {"system", "machine"} <= config.keys():
        raise ValueError(
            f"{path} is a run folder of scalelab already; to write it in Hugging Face layout:"
            f" python -m scalelab.interop.hf export {path} --to=DIR"
        )
    return config


def _check_sizes(fields: dict[str, Any], tensors: Tensors) -> None:
    """Refuses sizes far beyond the tensors, before any array is made."""
    width, num_layers = fields["width"], fields["num_layers"]
    by_layer = width * (4 * width + 2 * fields["ffn_width"])
    described = width * (fields["vocab_size"] + fields["max_len"]) + num_layers * by_layer
    stored = sum(map(math.prod, tensors.shapes.values()))
    if num_layers > len(tensors.shapes) or described > 8 * stored + 1_000_000:
        sizes = ("width", "num_layers", "ffn_width", "vocab_size", "max_len")
        raise ValueError(
            f"config.json contradicts the tensors: its sizes"
            f" ({', '.join(f'{name} {fields[name]:,}' for name in sizes)}) make {described:,}"
            f" values or more, the files hold {stored:,} in {len(tensors.shapes)} tensors"
        )


def _match(
    family: Map, config: dict[str, Any], tensors: Tensors, sizes: Sizes
) -> tuple[Architecture, dict[str, str], dict[str, list[str]]]:
    """Finds the architecture whose tensors a folder holds.

    Returns:
      The architecture; name in the map -> name in the files; reason -> unused names in the map.

    Raises:
      ValueError: a tensor is missing, or has no place in the architecture.
    """
    expected = {a: set(convert.tensor_names(family.rows(a), sizes)) for a in family.variants}
    known = set().union(*expected.values(), *family.tied)
    names: dict[str, str] = {}
    for stored in tensors.shapes:
        name = convert.canonical_name(stored, family, known)
        if name in names:
            raise ValueError(f"{names[name]} and {stored} are the same parameter, stored twice")
        names[name] = stored
    copies = _find_copies(family, config, names)
    present = {
        n for n in names if n not in copies and not any(re.fullmatch(p, n) for p in family.buffers)
    }
    declared = config_json.declared_architecture(config)
    best = min(family.variants, key=lambda a: (len(expected[a] ^ present), a.name != declared))
    missing, extra = sorted(expected[best] - present), present - expected[best]
    unused = {
        why: sorted(n for n in extra if re.fullmatch(pattern, n)) for pattern, why in family.unused
    }
    if best.untied:
        unused["transformers computes with the tensor beside it"] = sorted(copies & names.keys())
    unmatched = sorted(names[n] for n in extra.difference(*unused.values()))
    if missing or unmatched:
        raise ValueError(
            f"the tensors are not those of a {best.name} of {sizes.num_layers} layers:"
            f" {len(missing)} missing{_list_some(missing)}\n{len(unmatched)}"
            f" unexpected{_list_some(unmatched)}"
        )
    return best, names, unused


def _list_some(names: list[str]) -> str:
    more = [f"... ({len(names):,} in all)"] if len(names) > MAX_LISTED else []
    return "".join(f"\n  {name}" for name in names[:MAX_LISTED] + more)


def _find_copies(family: Map, config: dict[str, Any], names: dict[str, str]) -> set[str]:
    """Returns the names of second copies; a tensor under its second name alone is renamed."""
    tied = config.get("tie_word_embeddings") is not False
    if tied or not set(family.tied[0]) <= names.keys():
        for name, original in family.tied:  # transformers too takes the one for the other
            if tied and name in names and original not in names:
                names[original] = names.pop(name)
        return {name for name, _ in family.tied}
    for name, original in family.tied[1:]:
        if name not in names and original in names:  # older versions stored the bias once
            names[name] = names.pop(original)
    return {original for _, original in family.tied[1:]}
