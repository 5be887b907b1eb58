"""Options of a system as fields of config.json: read, written, and refused by name."""

import dataclasses
from typing import Any

import pytest

from scalelab.interop import config_json, maps
from scalelab.interop.mapping import Field, Map

OPTIONS = (
    Field("embed_width", "embedding_size", 128, none="width"),
    Field("num_groups", "num_hidden_groups", 1),
)
OWN: dict[str, Any] = {"embed_width": 16, "num_groups": 2, "shared": "all"}


def family() -> Map:
    return dataclasses.replace(maps.load("bert"), options=OPTIONS, required={"shared": "all"})


def written(**options: Any) -> dict[str, Any]:
    sizes = {"num_heads": 2, "width": 8, "num_layers": 3, "ffn_width": 32, "max_len": 64}
    fields = sizes | {"vocab_size": 61, "dropout_rate": 0.1} | OWN | options
    made = family()
    return config_json.make_config(made, made.architectures[0], fields, {}, None, False)


@pytest.mark.parametrize(("options", "width"), [({}, 16), ({"embed_width": None}, 8)])
def test_there_and_back(options: dict[str, Any], width: int) -> None:
    config = written(**options)
    assert (config["embedding_size"], config["num_hidden_groups"]) == (width, 2)
    fields, _, _ = config_json.read_fields(family(), config)
    assert (fields["embed_width"], fields["num_groups"]) == (width, 2)


def test_defaults_are_those_of_transformers() -> None:
    config = {
        k: v for k, v in written().items() if k not in ("embedding_size", "num_hidden_groups")
    }
    fields, _, _ = config_json.read_fields(family(), config)
    assert (fields["embed_width"], fields["num_groups"]) == (128, 1)


@pytest.mark.parametrize(
    ("options", "names"),
    [({"shared": "ffn"}, "system_options.shared .*'ffn'.*'all'"),
     ({"num_groups": None}, "system_options.num_groups")],
)  # fmt: skip
def test_what_a_class_cannot_be_is_refused(options: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        written(**options)
    with pytest.raises(ValueError, match="embedding_size"):
        config_json.read_fields(family(), written() | {"embedding_size": 0})
