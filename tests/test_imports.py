"""Imports go one way (DESIGN, section 2), read from the import statements of the source."""

import ast
import functools
import pathlib
import re
import subprocess
import sys

import pytest
import tiny

from scalelab.helpers.names import module_names

PACKAGE = tiny.ROOT / "scalelab"

# What a room (a folder or a file of scalelab/) may import of the others, or one module of a room
# it imports nothing; itself always.
TABLE = """
helpers:
__main__: config eval.names helpers tasks
nn: helpers
nets: nn
formats: config helpers
optim: helpers nn
decode: nn resources.host
objectives: config formats helpers nn
systems: config helpers nets nn
sharding: helpers nn
state: config objectives optim sharding systems
step: config objectives sharding state
config: helpers
resources: config helpers nn objectives
records: config helpers
training: config data formats helpers nn objectives optim records resources sharding state step
  systems
data: config formats helpers systems
tasks: config data formats helpers records resources
finetuning: config data decode formats helpers nets nn objectives optim records resources sharding
  state step systems tasks training
finetune: config finetuning records resources tasks train training
eval: config data decode finetune finetuning helpers lab nn objectives records resources sharding
  systems.ngram.counts tasks training
lab: config eval.names eval.score_names helpers records tasks
thesis: config eval.score_names helpers lab records
studies: config data eval finetune finetuning helpers lab records resources sharding
  systems tasks train training
study: config eval helpers lab objectives records resources studies
worlds: config tasks
interop: config data eval.names eval.score_names finetuning formats helpers lab objectives records
  resources state systems training
"""
ROWS = (row.split(":") for row in TABLE.replace("\n  ", " ").strip().splitlines())
MAY_IMPORT = {room: set(others.split()) for room, others in ROWS}
# Binaries may import every room but each other.
BINARIES = {
    "train", "sample", "fill_mask", "fit", "data.inspect", "data.probes",
    "predict", "catalog", "interop.hf", "eval.lm", "eval.word_order", "lab.runs", "lab.laws",
    "lab.compound", "lab.signal_to_noise", "shapes", "eval.__main__", "data.__main__",
}  # fmt: skip
# Packages that one room alone, or none, may import.
ONLY_IN = {
    "tensorflow": {"data", "tasks"},
    "tensorflow_datasets": {"data", "tasks"},
    "datasets": {"data", "helpers"},
    "tokenizers": {"data", "interop"},
    "torch": set(),
    "transformers": {"interop"},
    "huggingface_hub": {"interop"},
    "safetensors": {"interop"},
    "ml_collections": {"config"},
    "orbax": {"training"},
}
NO_FLAGS = {"nn", "nets", "systems", "objectives", "formats", "optim", "decode", "lab"}


def modules() -> dict[str, pathlib.Path]:
    """Every module of scalelab by its name without the package: "nn.axes", "train"."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    """The room that a module belongs to."""
    return module.partition(".")[0]


def family_of(module: str) -> str:
    """The family that a module belongs to: "systems.xlnet" for "systems.xlnet.net"; or ""."""
    return ".".join(module.split(".")[:2]) if module.startswith("systems.") else ""


def may_import(module: str, imported: str) -> bool:
    """Whether a module may import another module of scalelab."""
    room, other, family = room_of(module), room_of(imported), family_of(imported)
    if family and family not in (imported, family_of(module)):  # a module of another family
        return imported in MAY_IMPORT.get(room, ())
    if module in BINARIES:
        return imported not in BINARIES - {module}
    if room == other == "systems":
        return "systems" in (module, imported) or family == family_of(module)
    assert room in MAY_IMPORT, f"say in MAY_IMPORT what {room} may import"
    return bool({other, imported} & (MAY_IMPORT[room] | {room}))


@functools.cache
def imports(path: pathlib.Path) -> set[str]:
    """Full names of all that a file imports, by statements anywhere in it or by name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full.removeprefix("scalelab.") in MODULES else node.module)
        elif isinstance(node, ast.Call):
            names |= imported_by_name(node)
    return names


def test_what_is_imported_exists() -> None:
    """Imports inside functions, too: each name is a module, or stands in the module."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.module.startswith("scalelab"):
                continue
            given = node.module.removeprefix("scalelab").removeprefix(".")
            assert given in MODULES, f"{module} imports {node.module}"
            text = MODULES[given].read_text()
            for alias in node.names:
                there = f"{given}.{alias.name}".lstrip(".") in MODULES
                named = re.search(rf"\b{alias.name}\b", text)
                assert there or named, f"{module} imports {node.module}.{alias.name}"


def imported_by_name(call: ast.Call) -> set[str]:
    """The room of `import_module("scalelab.ROOM...")`, also of an f-string, or of load_module."""
    function = getattr(call.func, "attr", getattr(call.func, "id", None))
    first = call.args[0] if call.args else None
    if isinstance(first, ast.JoinedStr):
        first = first.values[0]
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return set()
    if function == "load_module":
        return {f"scalelab.{first.value}"}
    is_ours = function == "import_module" and first.value.startswith("scalelab.")
    return {first.value.rstrip(".")} if is_ours else set()


def test_the_modules_are_found() -> None:
    assert {"train", "nn.axes", "systems.bert", "data", "formats"} <= MODULES.keys()
    assert "scalelab.nets.encoder" in imports(MODULES["systems.bert"])
    assert "scalelab.interop.maps" in imports(MODULES["catalog"])  # by name


def test_imports_go_one_way() -> None:
    pairs = ((m, name) for m, path in MODULES.items() if m for name in imports(path))
    for module, name in pairs:
        room = room_of(module)
        top, _, rest = name.partition(".")
        if top == "scalelab" and rest:
            assert may_import(module, rest), f"{module} imports {name}"
        elif top in ONLY_IN:
            assert room in ONLY_IN[top], f"{module} imports {name}"
        elif top in ("benchmarks", "configs", "tests"):
            pytest.fail(f"{module} imports {name}")


@pytest.mark.parametrize(("module", "imported", "is_right"), [
    ("systems.xlnet", "systems", True),
    ("systems.xlnet", "systems.xlnet.net", True),
    ("systems.xlnet.net", "systems.xlnet.attention", True),
    ("systems.bert", "systems.roberta", False),
    ("systems.bert", "systems.xlnet", False),
    ("systems.bert", "systems.xlnet.net", False),
    ("systems.glm.net", "systems.xlnet", False),
    ("systems.glm.net", "systems.xlnet.net", False),
    ("train", "systems.glm.net", False),
    ("training.opening", "systems.glm", True),
    ("training.opening", "systems.glm.net", False),
    ("eval.ngram", "systems.ngram.counts", True),
    ("eval.ngram", "systems.ngram.net", False),
    ("nn.stack", "systems.glm.net", False),
])  # fmt: skip
def test_a_family_is_apart(module: str, imported: str, is_right: bool) -> None:
    """DESIGN, R5: modules of one family import neither another family nor modules of its own."""
    assert may_import(module, imported) == is_right


NAMES = {*module_names("systems"), *module_names("objectives")}
MAY_NAME = ("systems", "objectives", "interop.maps", "thesis")
NO_DECISION = {  # what the base config is, and a recipe that has a family's name
    ("config.pretraining", "roberta"), ("config.pretraining", "mlm"), ("tasks.recipes", "gpt"),
    ("eval.babylm", "mlm"),  # a folder's name in the challenge's files
    ("eval.suites", "lstm"), ("eval.suites", "ngram"),  # names in BLiMP's published scores
    ("eval.ngram", "ngram"), ("__main__", "ngram"),  # the program's own name, as users type it
    ("nn.recurrence", "lstm"),  # a cell's name
    ("tasks.generation", "copy"), ("worlds.sequences", "copy"),  # a task's name
}  # fmt: skip


def test_no_system_and_no_objective_decides_by_its_name() -> None:
    """Programs ask for capabilities (DESIGN, R10)."""
    found = {
        (module, node.value)
        for module, path in MODULES.items() if not module.startswith(MAY_NAME)
        for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
    }  # fmt: skip
    assert {(module, name) for module, name in found if name in NAMES} <= NO_DECISION


def test_no_flags_and_no_configs_below_the_binaries() -> None:
    for module in (m for m in MODULES if room_of(m) in NO_FLAGS and m not in BINARIES):
        names = imports(MODULES[module])
        tops = {name.partition(".")[0] for name in names}
        assert not tops & {"ml_collections", "argparse"}, module
        if not module.startswith("lab."):
            assert "scalelab.config.pretraining" not in names, module


def test_tensorflow_is_imported_inside_functions_alone() -> None:
    """Importing scalelab.data must cost no TensorFlow, and must work without it."""
    for module in (m for m in MODULES if room_of(m) in ("data", "tasks")):
        body = ast.parse(MODULES[module].read_text()).body
        outside = [n for n in body if not isinstance(n, ast.FunctionDef | ast.ClassDef)]
        for node in (node for statement in outside for node in ast.walk(statement)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any((name or "").startswith("tensorflow") for name in names), module


def imported_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has imported after `code`."""
    program = f"import sys\n{code}\nprint(*{{n.split('.')[0] for n in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tiny.ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("room", ["interop", "worlds", "thesis"])
def test_nothing_needs_it(room: str) -> None:
    """A study names `thesis` as data, as it names a comparison of a user's own."""
    users = {m for m, path in MODULES.items() if any(f".{room}" in n for n in imports(path))}
    assert {room_of(m) for m in users - BINARIES} == {room}


# Code, and what it must not import: naming a task, reading runs or a system is light.
TABLES = "import scalelab.lab.laws, scalelab.lab.compound"
RUNS = "import scalelab.lab.runs, scalelab.records.archive, scalelab.lab.show.card"
NO_JAX = {"jax", "flax", "tensorflow", "orbax", "tokenizers"}


@pytest.mark.parametrize(("code", "heavy"), [
    ("import scalelab.systems.bert, scalelab.step, scalelab.data.batches",
     {"tensorflow", "tensorflow_datasets", "torch", "transformers", "tokenizers"}),
    ("import scalelab.eval.program, scalelab.eval.tsv, scalelab.tasks.submission",
     NO_JAX | {"tensorflow_datasets", "torch"}),
    ("import scalelab.eval.compare, scalelab.records.plots", NO_JAX | {"sklearn"}),
    ("import scalelab.data.parallel", NO_JAX | {"transformers"}),  # a worker's
    (TABLES, NO_JAX | {"sklearn", "matplotlib"}),
    (f"import scalelab.shapes; {RUNS}", NO_JAX | {"scipy", "matplotlib"}),
])  # fmt: skip
def test_what_is_light(code: str, heavy: set[str]) -> None:
    there = imported_by(code)
    assert "numpy" in there and not there & heavy


def test_help_answers_without_jax() -> None:
    """Of every program; the last line of output is that of `imported_by`."""
    there = imported_by("""
from scalelab import __main__ as programs
for name in [*programs.PROGRAMS, "eval", "eval rte"]:
    try: programs.main([*name.split(), "--help"])
    except SystemExit as end: assert end.code == 0, (name, end.code)
""")
    assert not there & {"jax", "flax", "tensorflow", "transformers", "torch", "orbax"}
