"""config.json through a map, both ways."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.helpers.names import brief, nearest
from scalelab.interop import maps
from scalelab.interop.rows import Architecture, Map

MOST = 2**48  # sizes beyond are no sizes of anything


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
    if not isinstance(model_type, str) or model_type not in known:
        raise ValueError(
            f"unsupported architecture: config.json has model_type {brief(model_type)}"
            f" ({declared or 'no class named'}); supported are {', '.join(known)}:"
            f" {supported()}"
        )
    family = known[model_type]
    valid = list(dict.fromkeys(a.name for a in family.architectures))
    if declared is not None and declared not in valid:
        raise ValueError(
            f"unsupported architecture {declared!r}: {nearest(declared, valid)}; supported are"
            f" {supported()}"
        )
    return family


def declared_architecture(config: Mapping[str, Any]) -> str | None:
    """The class that config.json names, if it does.

    Raises:
      ValueError: it names something else.
    """
    named = config.get("architectures")
    if not named:
        return None
    if isinstance(named, list) and isinstance(named[0], str):
        return named[0]
    raise ValueError(
        f"config.json: architectures = {brief(named)}; expected a list of classes' names"
    )


def read(family: Map, config: Mapping[str, Any]) -> Settings:
    """Reads the fields that a map names.

    Raises:
      ValueError: a value that our net cannot take, or that is no size.
    """
    _check_others(config)
    wrong = []
    for fixed in family.fixed:
        value = config.get(fixed.theirs, fixed.default)
        if not any(type(value) is type(v) and value == v for v in fixed.values) and not (
            isinstance(value, int | float) and not isinstance(value, bool) and value in fixed.values
        ):
            wrong.append(
                f"{fixed.theirs} = {brief(value)}"
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
        is_rate = field.ours == "dropout_rate"
        value = (rate if is_rate else _size)(config, field.theirs)
        value = field.default if value is None else value
        value = None if value is None else value - field.offset
        if value is not None and value <= 0 and not is_rate:
            raise ValueError(
                f"config.json: {field.theirs} = {value + field.offset}; expected more than"
                f" {field.offset}"
            )
        if fields.setdefault(field.ours, value) != value:
            notes.append(
                f"{field.theirs} = {value}: left out, this net has one dropout rate,"
                f" {fields[field.ours]}"
            )
    pad, size = config.get("pad_token_id"), fields["vocab_size"]
    if pad is not None and not (type(pad) is int and -size <= pad < size):
        raise ValueError(
            f"config.json: pad_token_id = {brief(pad)}; expected one of its {size:,} token ids"
        )
    if not fields.get("ffn_width"):
        fields["ffn_width"] = 4 * fields["width"]
    if fields["width"] % fields["num_heads"]:
        raise ValueError(
            f"config.json contradicts itself: {fields['num_heads']} attention heads do not divide"
            f" the width {fields['width']}"
        )
    return Settings(fields, tuple(notes))


def rate(config: Mapping[str, Any], name: str) -> float | None:
    """A probability in config.json; None where it is silent.

    Raises:
      ValueError: it is none.
    """
    value = config.get(name)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    if value is not None and not fits:
        raise ValueError(f"config.json: {name} = {brief(value)}; expected a probability in [0, 1)")
    return None if value is None else float(value)


def _size(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is not None and (type(value) is not int or not 0 < value < MOST):
        raise ValueError(f"config.json: {name} = {brief(value)}; expected a positive whole number")
    return value


def _check_others(config: Mapping[str, Any]) -> None:
    """Refuses values of fields that no map has; the tokenizer's library would trip over them."""
    tied, named = config.get("tie_word_embeddings"), config.get("id2label")
    if not isinstance(tied, bool | None):
        raise ValueError(
            f"config.json: tie_word_embeddings = {brief(tied)}; expected true or false"
        )
    numbers = list(named) if isinstance(named, Mapping) else None
    expected = [str(i) for i in range(len(numbers or []))]
    if named is not None and (numbers is None or sorted(numbers) != sorted(expected)):
        raise ValueError(
            f"config.json: id2label = {brief(named)}; expected an object with the keys"
            ' "0", "1", ..., the number of each class'
        )
    labels = list((named or {}).values())
    if len(set(map(str, labels))) < len(labels):
        raise ValueError(
            f"config.json: id2label = {brief(named)} gives two classes one name; expected a name of"
            " its own for each"
        )
    _size(config, "num_labels")
    rate(config, "classifier_dropout")


def labels_of(config: Mapping[str, Any]) -> list[str]:
    """Names of a classifier's classes in order: that of the numbers, where "10" is behind "9"."""
    named = config.get("id2label")
    if named:
        return [str(named[str(i)]) for i in range(len(named))]
    return [f"LABEL_{i}" for i in range(_size(config, "num_labels") or 2)]


def is_regression(config: Mapping[str, Any], num_classes: int) -> bool:
    """Whether a classifier's one score is fitted, not classes told apart.

    Raises:
      ValueError: it is trained for something else.
    """
    problem, known = config.get("problem_type"), ("regression", "single_label_classification")
    if problem is not None and problem not in known:
        raise ValueError(
            f"config.json: problem_type = {brief(problem)}; scalelab's classifiers choose one of"
            f" several classes or fit one score: expected {' or '.join(known)}"
        )
    if problem == "regression" and num_classes != 1:
        raise ValueError(
            f"config.json: problem_type = 'regression', with {num_classes} scores; scalelab's"
            " regression fits one"
        )
    return num_classes == 1


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
        "tie_word_embeddings": not architecture.untied,
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
