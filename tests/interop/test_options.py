"""Fields of config.json: defaults, and options of a system that are read, written and refused."""

from typing import Any

import pytest
import transformers

from scalelab.interop import config_json, maps
from scalelab.interop.mapping import Map

ALBERT: dict[str, Any] = {"embed_width": 16, "num_groups": 2, "shared": "all"}


@pytest.mark.parametrize("family", maps.load_all(), ids=lambda family: family.system)
def test_defaults_are_those_of_transformers(family: Map) -> None:
    theirs = transformers.AutoConfig.for_model(family.model_type).to_dict()
    fields = [f for f in (*family.fields, *family.options, *family.fixed) if f.key in theirs]
    assert len(fields) > 8
    assert {f.key: f.default for f in fields} == {f.key: theirs[f.key] for f in fields}


def written(system: str, **options: Any) -> dict[str, Any]:
    sizes = {"num_heads": 2, "width": 8, "num_layers": 3, "ffn_width": 32, "max_len": 64}
    fields = sizes | {"vocab_size": 61, "dropout_rate": 0.1} | options
    family = maps.load(system)
    return config_json.make_config(family, family.architectures[0], fields, {}, None, False)


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
