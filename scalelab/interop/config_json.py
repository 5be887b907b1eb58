"""Translates config.json in both directions, by the fields of a map."""

from collections.abc import Mapping
from typing import Any

from scalelab.helpers.names import brief, nearest
from scalelab.interop import maps
from scalelab.interop.mapping import Architecture, Map

MAX_SIZE = 2**48
SINGLE_LABEL, REGRESSION = "single_label_classification", "regression"


def find_map(config: Mapping[str, Any]) -> Map:
    """Returns the map of a config.json.

    Raises:
      ValueError: no map has its model_type and architecture.
    """
    known = {m.model_type: m for m in maps.load_all()}
    classes = {a.name: m for m in known.values() for a in m.architectures}
    declared = declared_architecture(config)
    model_type = config.get("model_type")
    if model_type is None and declared in classes:  # early releases did not write it
        model_type = classes[declared].model_type
    if not isinstance(model_type, str) or model_type not in known:
        raise ValueError(
            f"unsupported architecture: config.json has model_type {brief(model_type)}"
            f" ({declared or 'no class named'}); supported are {', '.join(known)}:"
            f" {', '.join(classes)}"
        )
    valid = [name for name, family in classes.items() if family is known[model_type]]
    if declared is not None and declared not in valid:
        raise ValueError(
            f"unsupported architecture {declared!r}: {nearest(declared, valid)}; supported are"
            f" {', '.join(classes)}"
        )
    return known[model_type]


def declared_architecture(config: Mapping[str, Any]) -> str | None:
    """Returns the class that config.json names, or None.

    Raises:
      ValueError: `architectures` is no list of names.
    """
    names = config.get("architectures")
    if not names:
        return None
    if isinstance(names, list) and isinstance(names[0], str):
        return names[0]
    raise ValueError(f"config.json: architectures = {brief(names)}; expected a list of class names")


def read_fields(family: Map, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Reads the fields that a map names.

    Returns:
      Values by the names of mapping.Field.ours, and remarks for the user.

    Raises:
      ValueError: a field has a value that our net cannot take.
    """
    _check_fixed(family, config)
    if not isinstance(config.get("tie_word_embeddings"), bool | None):
        tied = brief(config["tie_word_embeddings"])
        raise ValueError(f"config.json: tie_word_embeddings = {tied}; expected true or false")
    fields: dict[str, Any] = {}
    remarks = []
    for field in family.fields:
        is_rate = field.ours == "dropout_rate"
        value = (read_rate if is_rate else read_size)(config, field.theirs)
        value = field.default if value is None else value
        value = None if value is None else value - field.offset
        if value is not None and value <= 0 and not is_rate:
            raise ValueError(
                f"config.json: {field.theirs} = {value + field.offset}; expected more than"
                f" {field.offset}"
            )
        if fields.setdefault(field.ours, value) != value:
            remarks.append(
                f"{field.theirs} = {value} is ignored: this net has one dropout rate,"
                f" {fields[field.ours]}"
            )
    pad, vocab_size = config.get("pad_token_id"), fields["vocab_size"]
    if pad is not None and not (type(pad) is int and -vocab_size <= pad < vocab_size):
        raise ValueError(
            f"config.json: pad_token_id = {brief(pad)}; expected one of {vocab_size:,} token ids"
        )
    fields["ffn_width"] = fields.get("ffn_width") or 4 * fields["width"]
    if fields["width"] % fields["num_heads"]:
        raise ValueError(
            f"config.json contradicts itself: {fields['num_heads']} attention heads do not divide"
            f" the width {fields['width']}"
        )
    return fields, remarks


def _check_fixed(family: Map, config: Mapping[str, Any]) -> None:
    wrong = []
    for fixed in family.fixed:
        value = config.get(fixed.theirs, fixed.default)
        same_type = [v for v in fixed.values if isinstance(v, bool) == isinstance(value, bool)]
        if value not in same_type:
            default = " (the default)" if fixed.theirs not in config else ""
            expected = " or ".join(map(repr, fixed.values))
            wrong.append(
                f"{fixed.theirs} = {brief(value)}{default}: expected {expected}, for {fixed.why}"
            )
    if wrong:
        raise ValueError(
            f"scalelab's {family.system} cannot compute what config.json describes:\n  "
            + "\n  ".join(wrong)
        )


def read_rate(config: Mapping[str, Any], name: str) -> float | None:
    """Returns a probability of config.json; None if the field is absent.

    Raises:
      ValueError: the value is no probability below 1.
    """
    value = config.get(name)
    if value is not None and not (type(value) in (int, float) and 0 <= value < 1):
        raise ValueError(f"config.json: {name} = {brief(value)}; expected a probability in [0, 1)")
    return None if value is None else float(value)


def read_size(config: Mapping[str, Any], name: str) -> int | None:
    """Returns a size of config.json; None if the field is absent.

    Raises:
      ValueError: the value is no positive integer.
    """
    value = config.get(name)
    if value is not None and not (type(value) is int and 0 < value < MAX_SIZE):
        raise ValueError(f"config.json: {name} = {brief(value)}; expected a positive whole number")
    return value


def read_labels(config: Mapping[str, Any], num_classes: int) -> list[str]:
    """Returns the names of a classifier's classes, in the order of its scores.

    Raises:
      ValueError: id2label does not name that many classes, each once.
    """
    names = config.get("id2label")
    if names is None or names == {}:
        return [f"LABEL_{i}" for i in range(num_classes)]
    keys = [str(i) for i in range(len(names) if isinstance(names, dict) else 0)]
    if not isinstance(names, dict) or sorted(names) != sorted(keys):
        raise ValueError(
            f"config.json: id2label = {brief(names)}; expected an object with the keys"
            ' "0", "1", ...: the number of each class'
        )
    labels = [str(names[key]) for key in keys]  # "10" comes after "9"
    if len(set(labels)) < len(labels):
        raise ValueError(f"config.json: id2label = {brief(names)} gives two classes one name")
    if len(labels) != num_classes:
        raise ValueError(
            f"config.json names {len(labels)} classes ({', '.join(labels[:5])}), but the classifier"
            f" has {num_classes}"
        )
    return labels


def is_regression(config: Mapping[str, Any], num_classes: int) -> bool:
    """Returns True if a classifier fits one score, False if it chooses a class.

    Raises:
      ValueError: it does neither.
    """
    problem = config.get("problem_type")
    if problem not in (None, REGRESSION, SINGLE_LABEL):
        raise ValueError(
            f"config.json: problem_type = {brief(problem)}; scalelab's classifiers choose one class"
            f" or fit one score: expected {REGRESSION} or {SINGLE_LABEL}"
        )
    if problem == REGRESSION and num_classes != 1:
        raise ValueError(
            f"config.json: problem_type = {REGRESSION!r} with {num_classes} scores; scalelab's"
            " regression fits one"
        )
    return num_classes == 1


def make_config(
    family: Map,
    architecture: Architecture,
    fields: Mapping[str, Any],
    token_ids: Mapping[str, int],
    labels: list[str] | None,
    regression: bool,
) -> dict[str, Any]:
    """Makes the content of config.json.

    Args:
      family: the map.
      architecture: the class.
      fields: values by the names of mapping.Field.ours.
      token_ids: id of each special role: pad, bos, eos.
      labels: names of a classifier's classes; None for other nets.
      regression: whether the classifier fits one score.

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
        if fields["ffn_width"] != 4 * fields["width"]:
            raise ValueError(
                f"{architecture.name} cannot hold this run: its feed-forward width is"
                f" {4 * fields['width']} (4 times the width), this net's is {fields['ffn_width']}"
            )
    if labels is not None:
        made["id2label"] = {str(i): label for i, label in enumerate(labels)}
        made["label2id"] = {label: i for i, label in enumerate(labels)}
        made["problem_type"] = REGRESSION if regression else SINGLE_LABEL
    return made
