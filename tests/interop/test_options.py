"""Fields of config.json: defaults, and options of a system that are read, written and refused."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import transformers

from scalelab.interop import config_json, convert, maps
from scalelab.interop.mapping import Derived, Map, Row

REQUIRED: dict[str, dict[str, Any]] = {
    "electra": {"embed_width": None, "generator_rate": None},
    "ernie": {"num_segments": 2, "num_tasks": None},
    "roberta": {"num_segments": 1},
    "t5": {"layers": None, "head_size": None},
    "xlnet": {"memory_len": 128},
}
ALBERT: dict[str, Any] = {"embed_width": 16, "num_groups": 2, "shared": "all"}


@pytest.mark.parametrize("family", maps.load_all(), ids=lambda family: family.system)
def test_defaults_are_those_of_transformers(family: Map) -> None:
    theirs = transformers.AutoConfig.for_model(family.model_type).to_dict()
    every = (*family.fields, *family.options, *family.choices, *family.fixed)
    fields = [f for f in every if f.key in theirs]
    assert len(fields) > 8
    assert {f.key: f.default for f in fields} == {f.key: theirs[f.key] for f in fields}


def written(system: str, **options: Any) -> dict[str, Any]:
    sizes = {"num_heads": 2, "width": 8, "num_layers": 3, "ffn_width": 32, "max_len": 64}
    fields = sizes | {"vocab_size": 61, "dropout_rate": 0.1} | options
    family, ids = maps.load(system), {"pad": 1}
    return config_json.make_config(family, family.architectures[0], fields, ids, None, False)


@pytest.mark.parametrize(("system", "options", "expected"), [
    ("albert", ALBERT, {"embedding_size": 16, "num_hidden_groups": 2}),
    ("electra", {"embed_width": None, "generator_rate": None}, {"embedding_size": 8}),
    ("electra", {"embed_width": 6, "generator_rate": None}, {"embedding_size": 6}),
    ("ernie", {"num_segments": 3, "num_tasks": None},
     {"type_vocab_size": 3, "use_task_id": False, "task_type_vocab_size": None}),
    ("ernie", {"num_segments": 2, "num_tasks": 4},
     {"type_vocab_size": 2, "use_task_id": True, "task_type_vocab_size": 4}),
])  # fmt: skip
def test_there_and_back(system: str, options: dict[str, Any], expected: dict[str, Any]) -> None:
    config = written(system, **options)
    assert {key: config.get(key) for key in expected} == expected
    fields, _, _ = config_json.read_fields(maps.load(system), config)
    names = {field.name: field.none for field in maps.load(system).options}
    read = {name: options[name] or fields.get(none or "") for name, none in names.items()}
    assert {name: fields.get(name) for name in names} == read


@pytest.mark.parametrize("family", maps.load_all(), ids=lambda family: family.system)
def test_numbers_and_activations_are_fields_there_and_back(family: Map) -> None:
    """None is the system's own value, so that an import equals a run of the same model."""
    options = ALBERT if family.system == "albert" else {}
    own = written(family.system, **REQUIRED.get(family.system, {}), **options)
    none = {choice.name: None for choice in family.choices}
    assert config_json.read_fields(family, own)[0].items() >= none.items()
    activation, *epsilons = family.choices
    for word, name in (activation.words or {}).items():
        read, _, _ = config_json.read_fields(family, own | {activation.key: word})
        own_name = (activation.words or {})[str(activation.own)]
        assert read["activation"] == (None if name == own_name else name)
    found = {"activation": "relu"} | {choice.name: 3e-4 for choice in epsilons}
    made = written(family.system, **REQUIRED.get(family.system, {}), **options, **found)
    read, _, _ = config_json.read_fields(family, made)
    assert made[activation.key] == "relu"
    assert [(made[choice.key], read[choice.name]) for choice in epsilons] in ([], [(3e-4, 3e-4)])
    assert read["activation"] == (None if activation.own == "relu" else "relu")


def test_what_a_class_cannot_be_is_refused() -> None:
    for changed, words in (
        ({"shared": "ffn"}, "system_options.shared .*'ffn'.*'all'"),
        ({"num_groups": None}, "system_options.num_groups"),
    ):
        with pytest.raises(ValueError, match=words):
            written("albert", **ALBERT | changed)
    damaged = written("albert", **ALBERT) | {"embedding_size": 0}
    with pytest.raises(ValueError, match="embedding_size"):
        config_json.read_fields(maps.load("albert"), damaged)


@pytest.mark.parametrize(("field", "value"), [("norm_epsilon", 3e-4), ("activation", "relu")])
def test_a_field_that_no_class_of_the_family_has_is_refused(field: str, value: Any) -> None:
    """Else the export would compute with the class's own epsilon."""
    bert = maps.load("bert")
    family = dataclasses.replace(bert, choices=tuple(c for c in bert.choices if c.name != field))
    sizes = {"num_heads": 2, "width": 8, "num_layers": 3, "ffn_width": 32, "max_len": 64}
    fields = sizes | {"vocab_size": 61, "dropout_rate": 0.1, field: None}
    config_json.make_config(family, family.architectures[0], fields, {}, None, False)
    with pytest.raises(ValueError, match=f"model.{field} is .*{value}.*which the class has not"):
        given = fields | {field: value}
        config_json.make_config(family, family.architectures[0], given, {}, None, False)


def test_a_derived_field_is_written_and_another_value_is_refused() -> None:
    size = Derived("d_kv", lambda sizes: sizes["width"] // sizes["num_heads"], "K = D / N")
    family = dataclasses.replace(maps.load("bert"), derived=(size,))
    sizes = {"num_heads": 2, "width": 8, "num_layers": 3, "ffn_width": 32, "max_len": 64}
    fields = sizes | {"vocab_size": 61, "dropout_rate": 0.1}
    made = config_json.make_config(family, family.architectures[0], fields, {}, None, False)
    assert made["d_kv"] == 4
    assert config_json.read_fields(family, made)[0]["width"] == 8
    with pytest.raises(ValueError, match="d_kv = 5; expected 4, because K = D / N"):
        config_json.read_fields(family, made | {"d_kv": 5})


def test_a_row_may_bring_its_own_pair_of_functions() -> None:
    halves = (lambda _, x: tuple(np.split(x, 2)), lambda first, second: np.append(first, second))
    rows = [Row(("a", "b"), ("both.{}",), halves)]
    tensors = {f"both.{i}": np.arange(4.0) + i for i in range(3)}
    sizes = convert.Sizes(2, 3, 61, 61)
    flat = convert.to_parameters([dataclasses.replace(rows[0])], tensors.__getitem__, sizes)
    np.testing.assert_array_equal(flat["b"], [[2, 3], [3, 4], [4, 5]])
    back = convert.to_tensors(rows, flat)
    assert {name: x.tolist() for name, x in back.items()} == {
        n: x.tolist() for n, x in tensors.items()
    }


def test_what_transformers_refuses_fails_at_export(tmp_path: pathlib.Path) -> None:
    made = written("bert")
    for changed in ({}, {"hidden_size": "8"}):
        (tmp_path / "config.json").write_text(json.dumps(made | changed))
        if not changed:
            config_json.check_loads(tmp_path)
            continue
        with pytest.raises(ValueError, match="transformers refuses this config.json.*hidden_size"):
            config_json.check_loads(tmp_path)
