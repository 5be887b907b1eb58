"""What an import notes of its source beside the parameters, so that an export can give it back."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

FACTS, TENSORS = "imported/source.json", "imported/originals.safetensors"
FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "problem_type")


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint of others, as far as our parameters do not tell.

    Attributes:
      sizes: fields of transforms.Sizes: vocab_rows, num_segments.
      dtypes: name in the map -> dtype of the tensors that are not float32.
      fields: those of FIELDS that its config.json has.
      tensors: tensors that our parameters could not give back bit by bit, by name in the map.
    """

    sizes: dict[str, int]
    dtypes: dict[str, str]
    fields: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def save(self, workdir: pathlib.Path) -> None:
        """Writes it into a run folder."""
        (workdir / FACTS).parent.mkdir()
        facts = {"sizes": self.sizes, "dtypes": self.dtypes, "fields": self.fields}
        (workdir / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if self.tensors:
            save_file(self.tensors, workdir / TENSORS)


def load(workdir: pathlib.Path) -> Source | None:
    """Reads it from a run folder; None: the run is no import.

    Raises:
      ValueError: it is damaged.
    """
    if not (workdir / FACTS).is_file():
        return None
    try:
        facts = json.loads((workdir / FACTS).read_text(encoding="utf-8"))
        tensors = load_file(workdir / TENSORS) if (workdir / TENSORS).is_file() else {}
        found = Source(**facts, tensors=tensors)
        if not found.sizes.keys() <= {"vocab_rows", "num_segments"}:
            raise ValueError(f"unknown sizes {sorted(found.sizes)}")
        if not all(type(size) is int and size > 0 for size in found.sizes.values()):
            raise ValueError(f"sizes {found.sizes} are no counts")
        if not set(found.dtypes.values()) <= {"float32", "float16", "bfloat16"}:
            raise ValueError(f"unknown dtypes {sorted(set(found.dtypes.values()))}")
        if not found.fields.keys() <= set(FIELDS):
            raise ValueError(f"unknown fields {sorted(found.fields)}")
        return found
    except Exception as error:  # json, the library's errors and ours alike
        raise ValueError(
            f"{workdir / FACTS} or {TENSORS} is damaged ({error}): import anew"
        ) from None
