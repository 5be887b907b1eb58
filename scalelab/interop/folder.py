"""Opens a folder in Hugging Face layout and checks that its files belong together."""

import dataclasses
import os
import pathlib
import re
from typing import Any

import numpy as np
from safetensors import safe_open

from scalelab import systems
from scalelab.helpers.files import reading
from scalelab.helpers.names import brief
from scalelab.interop import config_json, convert, tokenizer
from scalelab.interop.mapping import Architecture, Map
from scalelab.interop.tokenizer import ImportedTokenizer
from scalelab.records.json_files import read_object

WEIGHTS = "model.safetensors"
HUB_NAME = r"\w[\w.-]*(/[\w.-]+)?"
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "*.safetensors*",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*_tokens*.json",
]
INDEX = f"{WEIGHTS}.index.json"
# Rules in a folder that `transformers.generate` follows and `sample` does not: name -> no rule.
GENERATION = {
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids")),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens")),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    "repetition_penalty": 1.0,
}
FLOATS = ("F32", "F16", "BF16")  # float32 holds these exactly
NORM_NAMES = {"gamma": "weight", "beta": "bias"}  # early releases used TensorFlow's names
MAX_LISTED = 8


class Tensors:
    """The tensors of a folder: of one safetensors file, or of shards with an index.

    Raises:
      ValueError: a file is missing or damaged; the message names it.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.dtypes: dict[str, str] = {}  # tensor name -> dtype, as safetensors names it
        self._files: dict[str, pathlib.Path] = {}
        for file in _list_files(folder):
            with reading(file, ": fetch it again"), safe_open(file, "numpy") as opened:
                for name in opened.keys():
                    self.dtypes[name] = opened.get_slice(name).get_dtype()
                    self._files[name] = file

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32.

        Raises:
          ValueError: it has a dtype whose values float32 does not hold exactly, or a value that is
            not finite.
        """
        if self.dtypes[name] not in FLOATS:
            raise ValueError(
                f"{name} in {self._files[name]} has dtype {self.dtypes[name]}; expected one of"
                f" {', '.join(FLOATS)}. Convert the checkpoint, for example with"
                " model.float().save_pretrained(NEW)"
            )
        # Opened again for each tensor, which releases the mapped file.
        with safe_open(self._files[name], "numpy") as opened:
            values = opened.get_tensor(name).astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name} in {self._files[name]} has values that are not finite (NaN or infinity):"
                " the checkpoint is damaged, or its training failed"
            )
        return values


def _list_files(folder: pathlib.Path) -> list[pathlib.Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = read_object(folder / INDEX)
    if index is None:
        raise ValueError(
            f"{folder} has no {WEIGHTS} and no {INDEX}. A pickle, such as pytorch_model.bin, is not"
            " read, because it can run any code; if you trust it, convert it:"
            f" CLASS.from_pretrained({str(folder)!r}).save_pretrained(NEW)"
        )
    places = index.get("weight_map")
    names = {str(name) for name in places.values()} if isinstance(places, dict) else set()
    there = {name for name in names if "/" not in name and (folder / name).is_file()}
    if not names or names - there:
        raise ValueError(
            f"{folder / INDEX}: weight_map names {brief(sorted(names - there))}; expected files"
            " beside it"
        )
    return [folder / name for name in sorted(names)]


@dataclasses.dataclass(frozen=True)
class Folder:
    """A checkpoint in Hugging Face layout."""

    path: pathlib.Path
    config: dict[str, Any]
    family: Map
    architecture: Architecture
    fields: dict[str, int]  # its sizes and options, by the names of mapping.Field.name
    dropout_rate: float
    tokenizer: ImportedTokenizer
    params: convert.Flat  # our parameters by path
    remarks: list[str]  # what the import ignores, for the user


def fetch(source: str) -> pathlib.Path:
    """Returns the folder of a source, downloading it if it is a name on the hub.

    Raises:
      ValueError: the source is neither a folder nor a model on the hub.
    """
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists() or not re.fullmatch(HUB_NAME, source):
        raise ValueError(f"no folder {source!r}: expected one with config.json and {WEIGHTS}")
    import huggingface_hub

    try:
        return pathlib.Path(huggingface_hub.snapshot_download(source, allow_patterns=HUB_FILES))
    except Exception as error:  # no network, no such model, no permission
        raise ValueError(
            f"no folder {source!r} here, and the hub gives no model of that name"
            f" ({type(error).__name__}: {str(error)[:500]})"
        ) from None


def open_folder(path: pathlib.Path) -> Folder:
    """Opens a folder in Hugging Face layout.

    Raises:
      ValueError: something in it is missing, damaged, contradictory or not supported.
    """
    config = read_object(path / "config.json")
    if config is None:
        raise ValueError(f"{path} has no config.json (it holds {brief(os.listdir(path))})")
    if {"system", "machine"} <= config.keys():
        raise ValueError(
            f"{path} is a run folder of scalelab already; to write it in Hugging Face layout:"
            f" python -m scalelab.interop.hf export {path} --to=DIR"
        )
    family = config_json.find_map(config)
    fields, dropout_rate, remarks = config_json.read_fields(family, config)
    tensors = Tensors(path)
    num_layers, num_groups = fields["num_layers"], fields.get("num_groups")
    if (num_groups or num_layers) > len(tensors.dtypes):
        raise ValueError(
            f"config.json contradicts the tensors: {num_groups or num_layers:,} layers with"
            f" parameters, but only {len(tensors.dtypes)} tensors"
        )
    texts = tokenizer.read(path, systems.load(family.system).SPECIAL_TOKENS)
    if absent := [x for x in family.special if x not in texts.roles.values()]:
        raise ValueError(
            f"the tokenizer in {path} has no special token {absent[0]!r}, which"
            f" {family.system} needs: take the tokenizer that the model was trained with"
        )
    used, rows = texts.vocab_size, fields["vocab_size"]
    if used > rows:
        raise ValueError(
            f"config.json has vocab_size = {rows}, but the tokenizer beside it has ids up to"
            f" {used - 1}: they do not belong together"
        )
    if used < rows:
        remarks.append(
            f"the vocabulary is cut from {rows} to {used} rows: the tokenizer uses no other id"
        )
    sizes = convert.Sizes(fields["num_heads"], num_layers, used, rows, num_groups or 1)
    tied = not family.untied(config)
    one_table = not tied and family.one_table(config)
    named = str(config.get("architectures"))
    architecture, names, unused = _match(family, tied, one_table, tensors, sizes, named)
    if not tied and architecture.scores_tokens and not architecture.untied:
        raise ValueError(
            "the files have no output table besides the embedding table, and a model with this"
            " config.json needs one (tie_word_embeddings = false)"
        )
    if one_table and names[family.tied[0][0]] == names[family.tied[0][1]]:
        remarks.append("the table that scores tokens is a copy of the embedding's, as in the files")
    if unused:
        remarks.append(f"ignored, because no head uses them: {', '.join(unused)}")
    if architecture.predicts == "next":
        remarks += _list_generation(path, config)
    read = lambda name: tensors.read(names[name])  # noqa: E731
    params = convert.to_parameters(family.rows(architecture), read, sizes)
    return Folder(path, config, family, architecture, fields, dropout_rate, texts, params, remarks)


def _list_generation(path: pathlib.Path, config: dict[str, Any]) -> list[str]:
    """Returns a remark on the rules of decoding in a folder that `sample` does not follow."""
    stored = config | (read_object(path / "generation_config.json") or {})
    found = [
        f"{name} = {value}"
        for name, none in GENERATION.items()
        if (value := stored.get(name)) not in (None, [], none)
    ]
    return [f"decoding does not follow {', '.join(found)}"] if found else []


def _match(
    family: Map, tied: bool, one_table: bool, tensors: Tensors, sizes: convert.Sizes, named: str
) -> tuple[Architecture, dict[str, str], list[str]]:
    """Finds the architecture whose tensors a folder holds; of several the one that is `named`.

    Returns:
      The architecture; name in the map -> name in the files; names in the map that are not used.

    Raises:
      ValueError: a tensor is missing, or has no place in the architecture.
    """
    expected = {a: set(convert.tensor_names(family.rows(a), sizes)) for a in family.variants}
    known = set().union(*expected.values(), *family.copies, *family.tied)
    without_place = "|".join((*family.buffers, *family.zeros))
    patterns = "|".join((*family.buffers, *family.zeros, *family.unused))
    names: dict[str, str] = {}
    for stored in tensors.dtypes:
        stem, dot, last = stored.rpartition(".")
        name = stem + dot + NORM_NAMES.get(last, last)
        prefixed = family.prefix + name
        if name not in known and (prefixed in known or re.fullmatch(patterns, prefixed)):
            name = prefixed
        if name in names:
            raise ValueError(f"{names[name]} and {stored} are the same parameter, stored twice")
        names[name] = stored
    _resolve_copies(family, tied, tensors, names)
    if one_table and (table := names.get(family.tied[0][1])):
        names.setdefault(family.tied[0][0], table)
    present = {name for name in names if not re.fullmatch(without_place, name)}
    for name in names:
        if re.fullmatch("|".join(family.zeros), name) and tensors.read(names[name]).any():
            raise ValueError(
                f"{names[name]} is not zero, and scalelab's {family.system} has no such parameter"
            )
    best = min(
        expected,
        key=lambda a: (len(expected[a] - present), len(present - expected[a]), a.name not in named),
    )
    missing, extra = expected[best] - present, present - expected[best]
    unused = {name for name in extra if re.fullmatch("|".join(family.unused), name)}
    unmatched = sorted(names[name] for name in extra - unused)
    if missing or unmatched:
        raise ValueError(
            f"the tensors do not match a {best.name} of {sizes.num_layers} layers:"
            f" {len(missing)} missing ({', '.join(sorted(missing)[:MAX_LISTED])}), {len(unmatched)}"
            f" unexpected ({', '.join(unmatched[:MAX_LISTED])})"
        )
    return best, names, sorted(unused)


def _resolve_copies(family: Map, tied: bool, tensors: Tensors, names: dict[str, str]) -> None:
    """Resolves the tensors that may be stored under two names; changes `names` in place.

    Raises:
      ValueError: two copies differ in a tied model.
    """
    pairs = family.copies + family.tied
    if not tied and set(family.tied[0]) <= names.keys():
        pairs = family.copies
        for name, original in family.tied[1:]:
            if original in names:  # the copy counts; older versions stored the bias once
                names.setdefault(name, names.pop(original))
    for name, original in pairs:
        copy = names.pop(name, None)
        if copy is not None and original in names:
            if not np.array_equal(tensors.read(copy), tensors.read(names[original])):
                raise ValueError(
                    f"{copy} differs from {names[original]}, but config.json does not call the head"
                    " untied (tie_word_embeddings = false)"
                )
        elif copy is not None:  # transformers also uses one for the other
            names[original] = copy
