"""Rule R4 of the design: few fields, none of them a switch."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest
from flax import linen as nn

import scalelab.nets
import scalelab.nn
import scalelab.systems

MODULES = [
    member
    for package in (scalelab.nn, scalelab.nets, scalelab.systems)
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    for member in vars(importlib.import_module(found.name)).values()
    if inspect.isclass(member) and issubclass(member, nn.Module) and member.__module__ == found.name
]


assert {"SelfAttention", "PostNorm", "Stack", "Encoder", "TwoStreams"} <= {
    m.__name__ for m in MODULES
}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_few_fields_and_no_switches(module: type[nn.Module]) -> None:
    names = [f.name for f in dataclasses.fields(module) if f.name not in ("name", "parent")]
    assert len(names) <= 8
    assert not [n for n in names if n.startswith(("use_", "enable_", "is_"))]
    assert module.__bases__ == (nn.Module,)
