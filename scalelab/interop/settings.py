"""config.json through a map, both ways."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.interop import maps
from scalelab.interop.rows import Architecture, Map
from scalelab.names import nearest


@dataclasses.dataclass(frozen=True)
class Settings:
    """What config.json says, in our words.

    Attributes:
      fields: by the names of rows.Field.ours.
      notes: what was left out, for the user.
    """

    fields: dict[str, Any]
    notes: tuple[str, ...]


def supported() -> str:
    """The architectures that can be imported, in words."""
    return ", ".join(dict.fromkeys(a.name for m in maps.every() for a in m.architectures))


def family_of(config: Mapping[str, Any]) -> Map:
    """The map of a config.json.

    Raises:
      ValueError: there is none for its model_type or its architecture.
    """
    known = {m.model_type: m for m in maps.every()}
    model_type = config.get("model_type")
    declared = declared_architecture(config)
    if model_type is None and declared is not None:  # the first releases did not write it
        of = [m for m in known.values() if declared in {a.name for a in m.architectures}]
        model_type = of[0].model_type if of else None
    if model_type not in known:
        raise ValueError(
            f"unsupported architecture: config.json has model_type {model_type!r}"
            f" ({declared or 'no class named'}); supported are {', '.join(known)}:"
            f" {supported()}"
        )
    family = known[model_type]
    valid = [a.name for a in family.architectures]
    if declared is not None and declared not in valid:
        raise ValueError(
            f"unsupported architecture {declared!r}: {nearest(declared, valid)}; supported are"
            f" {supported()}"
        )
    return family


def declared_architecture(config: Mapping[str, Any]) -> str | None:
    """The class that config.json names, if it does."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named else None


def read(family: Map, config: Mapping[str, Any]) -> Settings:
    """Reads the fields that a map names.

    Raises:
      ValueError: a value that our net cannot take, or that is no size.
    """
    wrong = []
    for fixed in family.fixed:
        value = config.get(fixed.theirs, fixed.default)
        if not any(type(value) is type(v) and value == v for v in fixed.values) and not (
            isinstance(value, int | float) and not isinstance(value, bool) and value in fixed.values
        ):
            wrong.append(
                f"{fixed.theirs} = {value!r}"
                + (" (the default)" if fixed.theirs not in config else "")
                + f": expected {' or '.join(map(repr, fixed.values))}, for {fixed.why}"
            )
    if wrong:
        raise ValueError(
            f"scalelab's {family.system} cannot compute what config.json describes:\n  "
            + "\n  ".join(wrong)
        )
    fields: dict[str, Any] = {}
    notes = []
    for field in family.fields:
        value = config.get(field.theirs)
        value = field.default if value is None else value
        if value is not None:
            value = _checked(field.theirs, value, field.ours == "dropout_rate") - field.offset
        if fields.setdefault(field.ours, value) != value:
            notes.append(
                f"{field.theirs} = {value}: left out, this net has one dropout rate,"
                f" {fields[field.ours]}"
            )
    if not fields.get("ffn_width"):
        fields["ffn_width"] = 4 * fields["width"]
    if fields["width"] % fields["num_heads"]:
        raise ValueError(
            f"config.json contradicts itself: {fields['num_heads']} attention heads do not divide"
            f" the width {fields['width']}"
        )
    return Settings(fields, tuple(notes))


def _checked(name: str, value: Any, is_rate: bool) -> Any:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if fits and is_rate and 0 <= value < 1:
        return float(value)
    if fits and not is_rate and type(value) is int and value > 0:
        return value
    expected = "a probability in [0, 1)" if is_rate else "a positive whole number"
    raise ValueError(f"config.json: {name} = {value!r}; expected {expected}")


def labels_of(config: Mapping[str, Any]) -> list[str]:
    """Names of a classifier's classes in order."""
    named = config.get("id2label")
    if isinstance(named, Mapping) and named:
        try:
            return [str(named[key]) for key in sorted(named, key=int)]
        except ValueError:
            raise ValueError(
                f"config.json: id2label has keys {list(named)[:5]}, no numbers"
            ) from None
    return [f"LABEL_{i}" for i in range(config.get("num_labels", 2))]


def is_regression(config: Mapping[str, Any], num_classes: int) -> bool:
    """Whether a classifier's one score is fitted, not classes told apart."""
    return config.get("problem_type") == "regression" or num_classes == 1


def write(
    family: Map,
    architecture: Architecture,
    fields: Mapping[str, Any],
    token_ids: Mapping[str, int],
    labels: list[str] | None,
    regression: bool,
) -> dict[str, Any]:
    """The content of config.json.

    Args:
      family: the map.
      architecture: the class.
      fields: by the names of rows.Field.ours.
      token_ids: id of each special role: pad, bos, eos.
      labels: names of a classifier's classes; None for others.
      regression: whether its one score is fitted.

    Raises:
      ValueError: the class cannot have such sizes.
    """
    made: dict[str, Any] = {
        "model_type": family.model_type,
        "architectures": [architecture.name],
        "dtype": "float32",
        "tie_word_embeddings": True,
    }
    for role in ("pad", "bos", "eos"):
        made[f"{role}_token_id"] = token_ids.get(role)
    for fixed in family.fixed:
        value = made.setdefault(fixed.theirs, fixed.values[0])
        if value not in fixed.values:
            raise ValueError(
                f"{architecture.name} cannot hold this run: its {fixed.theirs} would be {value!r},"
                f" but {fixed.why}"
            )
    for field in family.fields:
        made[field.theirs] = fields[field.ours] + field.offset
    if not any(f.ours == "ffn_width" for f in family.fields):
        inner, width = fields["ffn_width"], fields["width"]
        if inner != 4 * width:
            raise ValueError(
                f"{architecture.name} cannot hold this run: its feed-forward width is 4 times the"
                f" width, 4 x {width} = {4 * width}, this net's is {inner}"
            )
    if labels is not None:
        made["id2label"] = {str(i): label for i, label in enumerate(labels)}
        made["label2id"] = {label: i for i, label in enumerate(labels)}
        made["problem_type"] = "regression" if regression else "single_label_classification"
    return made
