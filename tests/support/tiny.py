"""Small parts that many tests share: systems at a tiny shape, synthetic batches, small corpora."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import types
import zlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import declared
import numpy as np

from scalelab import formats
from scalelab.config import files
from scalelab.config import pretraining as config_lib
from scalelab.helpers import names

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEMS = names.module_names("systems")
SHAPE = (2, 8, 3)  # A, H, L
VOCAB, LENGTH, BATCH = declared.VOCAB, 16, 8
ALWAYS = {array.name for array in formats.COMMON}


def config_module(name: str) -> types.ModuleType:
    """Loads configs/<name>.py."""
    return files.load(ROOT / f"configs/{name}.py")


def values(arguments: str = "", **fields: Any) -> dict[str, Any]:
    """What configs/pretrain.py gives, with fields replaced: model__width=8 sets model.width."""
    config = config_module("pretrain").get_config(arguments).to_dict()
    for name, value in fields.items():
        *groups, field = name.split("__")
        group = functools.reduce(lambda part, key: part[key], groups, config)
        assert field in group or groups[0].endswith("_options"), name
        group[field] = value
    return config


def small(cache_dir: Any) -> dict[str, Any]:
    """Fields of a training on an invented corpus, as in `values`."""
    return dict(
        tokenizer__vocab_size=300, model__max_len=64, short__max_len=32, short__batch_size=8,
        machine__cache_dir=str(cache_dir), machine__num_workers=1,
    )  # fmt: skip


def train_flags(
    workdir: Any, corpus: Any, cache_dir: Any, steps: int = 4, config: str = "", **fields: Any
) -> list[str]:
    """The flags with which `scalelab.train` trains a tiny BERT; fields are as in `values`."""
    few = dict(long__example_rate=0.0, eval__num_examples=16, machine__compile_cache_dir=None)
    config = config or f"{ROOT}/configs/pretrain.py"
    config += f":system=bert,shape=2x8x1,steps={steps},corpus=wikitext:{corpus}"
    given = (small(cache_dir) | few | fields).items()
    changes = [f"--config.{name.replace('__', '.')}={value}" for name, value in given]
    return [f"--workdir={workdir}", f"--config={config}", *changes]


def config(system: str, **fields: Any) -> config_lib.Config:
    """A system at the tiny shape, with its declared fields: one phase, V = 97, T = 16, B = 8."""
    shape = "x".join(map(str, SHAPE))
    given = dict(
        model__max_len=LENGTH, tokenizer__vocab_size=VOCAB, short__max_len=LENGTH,
        short__batch_size=BATCH, long__max_len=LENGTH, long__example_rate=0.0,
        optim__learning_rate=1e-3,
    )  # fmt: skip
    return config_lib.resolve(
        values(
            f"system={system},shape={shape},steps=100",
            **(given | declared.get(system).fields | fields),
        )
    )


def label_names() -> set[str]:
    """Names of the arrays of all formats that are labels of examples."""
    declared_arrays = (formats.load(n).ARRAYS for n in names.module_names("formats"))
    return {a.name for arrays in declared_arrays for a in arrays if a.dtype == "int8"}


def terms(
    module: types.ModuleType, objective: str, *, rate: float = 0.15, size: int = VOCAB,
    **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Terms of a sum like mlm+rtd, of a system's special tokens, with equal weights."""
    from scalelab import objectives, systems

    setting = objectives.Setting(size, systems.special_ids(module), rate)
    return objectives.make(dict.fromkeys(objective.split("+"), 1.0), setting, options)


def draw(net: Any, terms: tuple[Any, ...], length: int = LENGTH) -> Any:
    """Parameters of a model that are all far from 0."""
    import jax

    from scalelab import objectives

    shapes = objectives.abstract_variables(net, terms, max_len=length)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: (0.5 * rng.normal(size=x.shape)).astype(x.dtype), shapes)


def arrays_of(module: types.ModuleType) -> tuple[formats.Array, ...]:
    """The arrays of a system's batches, in the format that it declares."""
    changed = {departure.field: departure.value for departure in module.DEPARTURES}
    return formats.arrays_of(changed.get("data.format", "doc_sentences"), {})


def batch(
    module: types.ModuleType, seed: int, *, size: int = BATCH, length: int = LENGTH
) -> dict[str, np.ndarray]:
    """A batch like those of the formats: frame tokens, pairs with labels, many lengths.

    Its halves have the same lengths and numbers of special tokens, and thus the same weights.
    """
    rng = np.random.default_rng(seed)
    num_special = len(module.SPECIAL_TOKENS)
    ids = {text: i for i, (_, text) in enumerate(module.SPECIAL_TOKENS)}
    begin, between, end = ([ids[text] for text in part] for part in module.FRAME)
    arrays = arrays_of(module)
    rest = [array for array in arrays if array.name not in ALWAYS]
    (own,) = (array for array in arrays if array.name == "tokens")
    length, longest = own.shape(length, size)[1], length
    beside = {a.name: a.dtype for a in rest if a.kind == "flat"}
    lengths = np.tile(rng.integers(length // 2, length + 1, size // 2), 2).astype(np.int32)
    lengths[0] = lengths[size // 2] = length
    rows = np.zeros((size, length), np.int32)
    for row, n in zip(rows, lengths, strict=True):
        row[:n] = rng.integers(num_special, VOCAB, n)
        row[: len(begin)] = begin
        if "second_starts" in beside:
            row[n // 2 - len(between) : n // 2] = between
        row[n - len(end) : n] = end
    made = dict(tokens=rows, lengths=lengths, num_bytes=4 * lengths)
    made |= dict(num_text_tokens=lengths - len(begin), examples=np.arange(size, dtype=np.int32))
    for array in (a for a in rest if a.kind == "ragged"):
        shape = array.shape(longest, size)
        made[array.name] = np.tile(7 * (np.arange(shape[1], dtype=np.int32) % 4 == 3), (size, 1))
        if array.dtype is None:
            made[array.name] = rng.integers(num_special, VOCAB, shape, np.int32)
        made[formats.lengths_name(array.name)] = np.minimum(lengths, shape[1])
    labels = np.arange(size, dtype=np.int32) // 2 % 2
    return made | {n: labels if dtype == "int8" else lengths // 2 for n, dtype in beside.items()}


def prepare(batch: dict[str, Any], terms: tuple[Any, ...], rng: Any) -> dict[str, np.ndarray]:
    """The batch as objectives prepare it: one program instead of one for each operation."""
    import jax

    from scalelab import objectives

    return jax.device_get(jax.jit(objectives.prepare, static_argnums=1)(batch, terms, rng))


def seen_places(net: Any, params: Any, batch: dict[str, Any]) -> np.ndarray:
    """Which places j the state at i depends on [B, T, T]: those where another token moves it."""
    import jax

    run = jax.jit(lambda batch: net.apply({"params": params}, batch, train=False)[0])
    before, tokens = run(batch), np.asarray(batch["tokens"])
    moved = []
    for j in range(tokens.shape[1]):
        changed = tokens.copy()
        changed[:, j] = (changed[:, j] + 1) % VOCAB
        moved.append(np.asarray(run(batch | {"tokens": changed}) != before).any(axis=-1))
    return np.stack(moved, axis=-1)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A system's parts at the tiny shape, unbound and uncompiled."""

    config: config_lib.Config
    module: types.ModuleType
    net: Any
    terms: tuple[Any, ...]

    @property
    def arrays(self) -> tuple[Any, ...]:
        return formats.arrays_of(self.config.data.format, self.config.format_options)

    def abstract_parameters(self, max_len: int = LENGTH) -> Any:
        """The parameter tree, boxed with axis names, without making it."""
        import jax

        from scalelab import objectives as objectives_lib

        return jax.eval_shape(
            lambda key: objectives_lib.init_variables(key, self.net, self.terms, max_len=max_len),
            jax.random.key(0),
        )["params"]


def parts(system: str, **fields: Any) -> Parts:
    from scalelab import systems

    return parts_of(config(system, **fields), systems.load(system))


def parts_of(resolved: config_lib.Config, module: Any, ids: dict[str, int] | None = None) -> Parts:
    """The parts of a system for a config; `ids`: of its special tokens by role."""
    from scalelab import state, systems

    size, remat = resolved.tokenizer.vocab_size, resolved.machine.remat
    net = systems.make_net(
        module, resolved.model, resolved.system_options, vocab_size=size, remat=remat
    )
    return Parts(
        resolved, module, net, state.make_terms(resolved, ids or systems.special_ids(module))
    )


def model(net: Any, terms: Any, tx: Any) -> Any:
    """The parts of a training program, of no system of ours."""
    from scalelab import state

    return state.Model(types.ModuleType("none"), net, tuple(terms), tx, {})  # type: ignore


def optimizer(resolved: config_lib.Config) -> Any:
    from scalelab.optim import adamw

    return adamw.adamw(**resolved.optim.without_rate)


def keep_gradients(tx: Any) -> Any:
    """`tx`, its state preceded by the gradients that it was last given."""
    import jax
    import jax.numpy as jnp
    import optax

    keep = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda grads, _, params=None: (grads, grads),
    )
    return optax.chain(keep, tx)


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Our code computes in float64, also where it says float32.

    All systems are imported before: defaults such as `dtype=jnp.float32` are made at the import.
    """
    import jax
    import jax.numpy as jnp

    from scalelab import systems

    for name in SYSTEMS:
        systems.load(name)
    with jax.enable_x64(True), mock.patch.object(jnp, "float32", jnp.float64):
        yield


def one_device() -> Any:
    import jax

    from scalelab import sharding

    return jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1, 1), sharding.MESH_AXES)


def sections(seed: int, count: int) -> list[str]:
    """`count` sections of invented prose, one to three paragraphs each, with Zipf's frequencies."""
    rng, own = np.random.default_rng(seed), np.random.default_rng(0)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = np.array(["".join(own.choice(syllables, own.integers(1, 5))) for _ in range(400)])
    chances = 1 / np.arange(1, len(words) + 1)
    chances /= chances.sum()

    def sentence() -> str:
        return " ".join(rng.choice(words, rng.integers(4, 16), p=chances)).capitalize() + " ."

    def paragraph() -> str:
        return " " + " ".join(sentence() for _ in range(rng.integers(2, 7))) + " \n"

    return ["".join(paragraph() for _ in range(rng.integers(1, 4))) for _ in range(count)]


def write_wikitext(folder: pathlib.Path, *, seed: int = 0, num_sections: int = 240) -> pathlib.Path:
    """Writes a corpus in WikiText's layout, with a validation and a test part."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, split in enumerate(("train", "valid", "test")):
        lines, count = [], num_sections // (8 if place else 1)
        for i, section in enumerate(sections(3 * seed + place, count)):
            heading = f" = Article {i // 3} = \n" if i % 3 == 0 else f" = = Part {i % 3} = = \n"
            lines.append(f" \n{heading} \n{section}")
        (folder / f"wiki.{split}.raw").write_text("".join(lines))
    return folder


def write_run(
    workdir: pathlib.Path,
    system: str,
    wikitext: pathlib.Path,
    cache_dir: pathlib.Path,
    spread: float = 0.1,
    **fields: Any,
) -> pathlib.Path:
    """Leaves in `workdir` what a training of 3 steps would, with invented parameters.

    `spread` is their standard deviation; fields are as in `values`. Nothing is compiled. The
    checkpoint of step 0 has other parameters than that of step 3.
    """
    import jax
    from flax import linen as nn

    from scalelab import state, systems
    from scalelab.data import tokenizers
    from scalelab.data.loading import load_data
    from scalelab.helpers.files import write_json
    from scalelab.optim.adamw import parameter_name
    from scalelab.records import run_folder
    from scalelab.training import checkpoint

    made = config_lib.resolve(
        values(
            f"system={system},shape=2x8x1,corpus=wikitext:{wikitext},steps=3",
            **(small(cache_dir) | {"long__example_rate": 0.0} | fields),
        )
    )
    module = systems.load(system)
    data = load_data(made, module, progress=False)
    whole = parts_of(made, module, data.tokenizer.special_ids)
    parts = model(whole.net, whole.terms, optimizer(made))
    make = functools.partial(state.fresh, model=parts, max_len=32)
    abstract = jax.eval_shape(lambda key: nn.unbox(make(key)), jax.random.key(0))
    rng = np.random.default_rng(zlib.crc32(system.encode()))

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        mean = 1.0 if parameter_name(path).endswith("scale") else 0.0
        return (mean + spread * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", 2)
    for step in (0, 3):
        params = jax.tree_util.tree_map_with_path(draw, abstract.params)
        saved = zeros.replace(step=np.int32(step), params=params)
        checkpoints.save(jax.tree.map(jax.numpy.asarray, saved), {})
    checkpoints.close()
    run_folder.write_description(workdir, made, tokenizers.digest(data.tokenizer_dir))
    shutil.copytree(data.tokenizer_dir, workdir / "tokenizer")
    shape = {"A": 2, "H": 8, "L": 1}
    evals = {"32": {"loss": 5.0, "step": 3}}
    result = {"status": "completed", "task": None, "steps": 3, "seed": 0, "eval": evals}
    write_json(
        workdir / "result.json", result | {"system": system, "shape": shape, "n_model": 12 * 8**2}
    )
    return workdir
