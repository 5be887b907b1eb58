"""The examples of docstrings run, and their `Args:` describe the arguments."""

import ast
import collections
import doctest
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest
import tiny

SOURCES = {
    ".".join(path.relative_to(tiny.ROOT).with_suffix("").parts): path.read_text()
    for room in ("scalelab", "benchmarks")
    for path in sorted((tiny.ROOT / room).rglob("*.py"))
}
MODULES = [name for name, source in SOURCES.items() if "\n    >>> " in source]
ARRAY = re.compile(r"\b(ndarray|jax\.Array|Batch|Arrays|ArrayLike|ArrayTree|ArrayPytree)\b")
MANY = 4  # functions of so many arguments describe them, whatever they are


def test_there_are_examples() -> None:
    assert len(MODULES) >= 8


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


class Function(NamedTuple):
    """A public function, or a method of a public class."""

    place: str
    names: tuple[str, ...]  # by which a Protocol declares it
    arguments: Mapping[str, str]  # name -> annotation
    described: list[str] | None  # names below Args:; None: there is no Args:
    declares: bool  # whether it is a method of a Protocol


def functions(module: str, source: str) -> Iterator[Function]:
    tree = ast.parse(source)
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        is_class = isinstance(owner, ast.ClassDef)
        declares = is_class and "Protocol" in map(ast.unparse, owner.bases)
        for node in owner.body:
            if is_class and owner.name.startswith("_") or not isinstance(node, ast.FunctionDef):
                continue
            if node.name.startswith("_") and node.name != "__call__":
                continue
            names = (node.name,)
            if not is_class or declares and node.name == "__call__":
                names += (f"{module}.__call__",)  # a Protocol of functions, such as metrics.Metric
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            notes = {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in given}
            arguments = {x: n for x, n in notes.items() if not is_class or x not in ("self", "cls")}
            _, is_there, section = (ast.get_docstring(node) or "").partition("\nArgs:\n")
            section = re.split(r"\n+(?=\S)", section)[0]
            described = re.findall(r"^  (\*{,2}\w+): ", section, re.MULTILINE)
            rest = ("*", node.args.vararg), ("**", node.args.kwarg)
            optional = {f"{stars}{own.arg}" for stars, own in rest if own}
            described = [x for x in described if x not in optional] if is_there else None
            yield Function(f"{module}:{node.lineno}", names, arguments, described, declares)


def faults(sources: Mapping[str, str]) -> list[str]:
    """Names functions of arrays, or of many arguments, that do not describe each of them.

    What a Protocol declares is described there.
    """
    found = [own for module, source in sources.items() for own in functions(module, source)]
    declared = collections.defaultdict(list)
    for own in found:
        for name in own.names if own.declares else ():
            declared[name].append(own.arguments.keys())
    wrong = []
    for own in found:
        seams = [arguments for name in own.names for arguments in declared[name]]
        has_array = any(map(ARRAY.search, own.arguments.values())) and len(own.arguments) > 1
        if own.described is not None:
            if own.described != [*own.arguments]:
                wrong.append(f"{own.place}: {[*own.arguments]}, but Args: has {own.described}")
        elif own.declares or not any(own.arguments.keys() <= seam for seam in seams):
            if has_array or len(own.arguments) >= MANY:
                wrong.append(f"{own.place}: {own.names[0]} needs Args:")
    return wrong


def test_arguments_are_described() -> None:
    assert faults(SOURCES) == []


@pytest.mark.parametrize(
    ("arguments", "described", "is_right"),
    [
        ("x: int, y: int", "", True),
        ("x: np.ndarray, n: int", "", False),
        ("x: np.ndarray, n: int", "xn", True),
        ("x: np.ndarray, n: int", "nx", False),
        ("a, b, c, d", "", False),
        ("x, *y", "x", True),
    ],
)
def test_a_fault_is_found(arguments: str, described: str, is_right: bool) -> None:
    section = "Args:\n" * bool(described) + "".join(f"      {x}: a.\n    " for x in described)
    source = f'def f({arguments}):\n    """F.\n\n    {section}"""'.replace("a.\n    ", "a.\n")
    assert (faults({"module": source}) == []) == is_right
