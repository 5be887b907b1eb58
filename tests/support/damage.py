"""What can be done to a folder in Hugging Face layout: each gives a function of the folder."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Damage = Callable[[pathlib.Path], Any]


def tensors(**changed: Any) -> Damage:
    """Replaces tensors, by the end of their names ("__" for a dot); None removes."""

    def damage(folder: pathlib.Path) -> None:
        file = folder / "model.safetensors"
        found = load_file(file)
        for end, value in changed.items():
            end = end.replace("__", ".")
            (name,) = [n for n in found if n.endswith(end)] or [end]
            old = found.pop(name, None)
            if value is not None:
                found[name] = value(old)
        save_file(found, file, metadata={"format": "pt"})

    return damage


def rename(change: Callable[[str], str], **more: np.ndarray) -> Damage:
    """Renames the tensors and adds some."""

    def damage(folder: pathlib.Path) -> None:
        file = folder / "model.safetensors"
        found = {change(name): x for name, x in load_file(file).items()} | more
        save_file(found, file, metadata={"format": "pt"})

    return damage


def config(**changed: Any) -> Damage:
    """Changes fields of config.json."""

    def damage(folder: pathlib.Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | changed
        (folder / "config.json").write_text(json.dumps(values))

    return damage


def raw(change: Callable[[bytes], bytes]) -> Damage:
    """Changes the bytes of the file of tensors."""

    def damage(folder: pathlib.Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return damage


def indexed(**places: str) -> Damage:
    """Makes the file of tensors a shard, with an index that has more places."""

    def damage(folder: pathlib.Path) -> None:
        found = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        all_places = dict.fromkeys(found, "model-00001-of-00001.safetensors") | places
        index = {"metadata": {}, "weight_map": all_places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return damage


def without(*names: str) -> Damage:
    """Deletes files."""

    def damage(folder: pathlib.Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def written(name: str, text: str) -> Damage:
    """Writes a file."""
    return lambda folder: (folder / name).write_text(text)
