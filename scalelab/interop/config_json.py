"""Translates config.json in both directions, by the fields of a map."""

import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.helpers.names import brief
from scalelab.interop import maps
from scalelab.interop.mapping import Architecture, Choice, Map

SINGLE_LABEL, REGRESSION = "single_label_classification", "regression"


def find_map(config: Mapping[str, Any]) -> Map:
    """Returns the map of a config.json.

    Raises:
      ValueError: no map has its model_type.
    """
    known = {m.model_type: m for m in maps.load_all()}
    model_type = str(config.get("model_type"))
    if model_type not in known:
        classes = [a.name for m in known.values() for a in m.architectures]
        raise ValueError(
            f"config.json has model_type {brief(model_type)}; supported are {', '.join(known)}:"
            f" {', '.join(classes)}"
        )
    return known[model_type]


def read_fields(family: Map, config: Mapping[str, Any]) -> tuple[dict[str, Any], float, list[str]]:
    """Reads the fields that a map names.

    Returns:
      Sizes and options by the names of mapping.Field.name, the dropout rate, and remarks for the
      user.

    Raises:
      ValueError: a field has a value that our model cannot take.
    """
    wrong = [
        f"{fixed.key} = {brief(value)}: expected {' or '.join(map(repr, fixed.values))},"
        f" because {fixed.why}"
        for fixed in family.fixed
        for value in [config.get(fixed.key, fixed.default)]
        if (type(value), value) not in [(type(x), x) for x in fixed.values]
    ]
    if wrong:
        raise ValueError(
            f"scalelab's {family.system} does not support this config.json: {'; '.join(wrong)}"
        )
    choices = (*family.choices, *family.option_choices)
    sizes: dict[str, Any] = {choice.name: read_choice(choice, config) for choice in choices}
    rates: dict[str, float] = {}
    for field in (*family.fields, *family.options):
        if field.switch and not config.get(field.switch):
            continue
        value = config.get(field.key)
        value = field.default if value is None else value
        if field.name == "dropout_rate":
            rates[field.key] = read_rate(config, field.key, field.default)
        elif value is not None:
            if not (type(value) is int and value > field.offset):
                raise ValueError(
                    f"config.json: {field.key} = {brief(value)}; expected a whole number above"
                    f" {field.offset}"
                )
            sizes[field.name] = value - field.offset
    rate = next(iter(rates.values()))
    remarks = [
        f"{name} = {other} is ignored: this model has one dropout rate, {rate}"
        for name, other in rates.items()
        if other != rate
    ]
    sizes = {"ffn_width": 4 * sizes["width"]} | sizes
    for derived in family.derived:
        value, expected = config.get(derived.key), derived.value(sizes)
        if value not in (None, expected):
            raise ValueError(
                f"config.json: {derived.key} = {brief(value)}; expected {expected!r}, because"
                f" {derived.why}"
            )
    return sizes, rate, remarks


def read_choice(choice: Choice, config: Mapping[str, Any]) -> str | float | None:
    """Returns the value of a field of config.model or of an option; None: the system's own.

    Raises:
      ValueError: our models cannot have the value.
    """
    value, words = config.get(choice.key, choice.default), choice.words
    if words is None:
        if not (type(value) in (int, float) and 0 < value < 1):
            expected = "a number between 0 and 1"
        else:
            return None if value == choice.own else float(value)
    elif isinstance(value, str) and value in words:
        return None if words[value] == words[str(choice.own)] else words[value]
    else:
        expected = " or ".join(map(repr, words))
    raise ValueError(f"config.json: {choice.key} = {brief(value)}; expected {expected}")


def read_rate(config: Mapping[str, Any], name: str, default: float | None) -> float:
    """Returns a probability of config.json; without a default it must be there.

    Raises:
      ValueError: the value is not a probability below 1.
    """
    value = default if config.get(name) is None else config[name]
    if not (type(value) in (int, float) and 0 <= value < 1):
        raise ValueError(f"config.json: {name} = {brief(value)}; expected a probability in [0, 1)")
    return float(value)


def read_classes(config: Mapping[str, Any], num_classes: int) -> tuple[list[str], bool]:
    """Reads the class names of a classifier.

    Returns:
      The class names in the order of the scores; True for a regression, which has one score.

    Raises:
      ValueError: id2label does not name each score once, or the classifier is multi-label.
    """
    keys = [str(i) for i in range(num_classes)]
    names = config.get("id2label") or {key: f"LABEL_{key}" for key in keys}
    if (
        not isinstance(names, dict)
        or sorted(names) != sorted(keys)
        or len(set(map(str, names.values()))) < num_classes
    ):
        raise ValueError(
            f"config.json: id2label = {brief(names)}; expected {num_classes} different names under"
            f' the keys "0", "1", ...: the classifier has {num_classes} scores'
        )
    problem = config.get("problem_type")
    if problem not in (None, SINGLE_LABEL, *[REGRESSION] * (num_classes == 1)):
        raise ValueError(
            f"config.json: problem_type = {brief(problem)} with {num_classes} scores; scalelab's"
            f" classifiers choose one class ({SINGLE_LABEL}) or fit one score ({REGRESSION})"
        )
    return [str(names[key]) for key in keys], num_classes == 1


def check_loads(folder: pathlib.Path) -> None:
    """Raises ValueError if `transformers` refuses the config.json of a folder."""
    from transformers import AutoConfig  # seconds to import

    try:
        AutoConfig.from_pretrained(folder)
    except Exception as error:  # transformers and huggingface_hub raise many types
        words = " ".join(str(error).split())
        raise ValueError(f"{folder}: transformers refuses this config.json: {words}") from error


def list_wrong_options(family: Map, options: Mapping[str, Any]) -> list[str]:
    """Returns what no class of the family can have of a run's system_options, in words."""
    wrong = [
        f"its system_options.{name} is {options[name]!r}, and the class needs {value!r}"
        for name, value in family.required.items()
        if options[name] != value
    ]
    return wrong + [
        f"its system_options.{field.name} is None, and the class needs a number"
        for field in family.options
        if options[field.name] is field.none is field.switch is None
    ]


def _spell(family: Map, choice: Choice, fields: Mapping[str, Any]) -> str | float | None:
    """Returns the value in config.json of all choices with the key of this one; None: none fits."""
    if choice.words is None:
        return choice.own if fields.get(choice.name) is None else fields[choice.name]

    def fits(choice: Choice, word: str) -> bool:
        words, value = choice.words or {}, fields.get(choice.name)
        return words[word] == (words[str(choice.own)] if value is None else value)

    same = [c for c in (choice, *family.option_choices) if c.key == choice.key]
    words = (str(choice.own), *choice.words)
    return next((word for word in words if all(fits(c, word) for c in same)), None)


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
      fields: sizes by the names of mapping.Field.name, and the run's system_options.
      token_ids: id of each special role: pad, bos, eos.
      labels: names of a classifier's classes; None for other models.
      regression: True if the classifier is a regression, with one score.

    Raises:
      ValueError: the class cannot have these sizes.
    """
    made: dict[str, Any] = {
        "model_type": family.model_type,
        "architectures": [architecture.name],
        "dtype": "float32",
        "tie_word_embeddings": not architecture.untied,
    }
    made |= {f"{role}_token_id": token_ids.get(role) for role in ("pad", "bos", "eos")}
    wrong = []
    for fixed in family.fixed:
        value = made.setdefault(fixed.key, fixed.values[0])
        if value not in fixed.values:
            wrong.append(f"its {fixed.key} would be {value!r}, but {fixed.why}")
    wrong += list_wrong_options(family, fields)
    for choice in family.choices:
        made[choice.key] = _spell(family, choice, fields)
        if made[choice.key] is None:
            name, value = choice.name, fields[choice.name]
            wrong.append(f"its model.{name} is {value!r}, which the class has not")
    for name in {"activation", "norm_epsilon"} - {choice.name for choice in family.choices}:
        if fields.get(name) is not None:
            wrong.append(f"its model.{name} is {fields[name]!r}, which the class has not")
    for field in (*family.fields, *family.options):
        value = fields[field.name]
        if field.switch:
            made[field.switch] = value is not None
            if value is None:
                continue
        if value is None and field.none is not None:
            value = fields[field.none]
        made[field.key] = None if value is None else value + field.offset
    made |= {derived.key: derived.value(fields) for derived in family.derived}
    free = any(field.name == "ffn_width" for field in family.fields)
    if not free and fields["ffn_width"] != 4 * fields["width"]:
        wrong.append(f"its feed-forward width is {4 * fields['width']}, not {fields['ffn_width']}")
    if wrong:
        raise ValueError(f"{architecture.name} cannot represent this run: {'; '.join(wrong)}")
    if labels is not None:
        made["id2label"] = {str(i): label for i, label in enumerate(labels)}
        made["label2id"] = {label: i for i, label in enumerate(labels)}
        if architecture.kind == "classify":
            made["problem_type"] = REGRESSION if regression else SINGLE_LABEL
    return made
