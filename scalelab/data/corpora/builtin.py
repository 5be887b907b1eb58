"""`builtin`: the documentation inside this Python installation; needs no download.

Help topics and docstrings of the standard library and of some dependencies, read from their source
files without importing them: technical English in a fixed order. Machines with the same versions
have the same text and corpus hash.
"""

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora
from scalelab.data.corpora import _docstrings

VERSION = "1"
PACKAGES = (
    "numpy", "scipy", "jax", "flax", "optax", "orbax", "matplotlib", "absl", "ml_collections",
    "etils",
)  # fmt: skip
# Tests and bundled code have little to read; site-packages lies inside the library's folder.
SKIPPED = {
    "test", "tests", "testing", "examples", "_vendor", "distutils", "encodings", "idlelib",
    "lib2to3", "site-packages", "dist-packages",
}  # fmt: skip


def read(argument: str, settings: corpora.Settings) -> corpora.Source:
    """Opens the corpus.

    Raises:
      ValueError: an argument was given, or there is no source file to be found.
    """
    del settings
    if argument:
        raise ValueError(f"corpus builtin takes no argument, got {argument!r}")
    topics = _topics()
    files = _files()
    if not files:
        raise ValueError(
            "corpus builtin: this Python has no source files of its library; name another corpus"
        )
    return corpora.Source(
        streams={"train": lambda tick: _documents(topics, files, tick)},
        num_bytes={"train": sum(path.stat().st_size for path in files)},
        identity=lambda: _identity(topics, files),
    )


def _identity(topics: Path | None, files: list[Path]) -> str:
    """Returns one hash over names and contents, in order, whatever the installation's path."""
    whole = hashlib.sha256()
    for path in [topics, *files] if topics else files:
        whole.update(f"{path.parent.name}/{path.name}\n".encode())
        with corpora.readable(path):
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def _documents(topics: Path | None, files: list[Path], tick: corpora.Tick) -> Iterator[str]:
    """Streams the documents, without repeated paragraphs (on common arguments, say)."""
    seen: set[bytes] = set()

    def fresh(paragraphs: list[str]) -> str:
        kept = []
        for paragraph in paragraphs:
            mark = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
            if mark not in seen:
                seen.add(mark)
                kept.append(paragraph)
        return "\n".join(kept)

    for topic in _topic_texts(topics) if topics else []:
        if text := fresh(_docstrings.paragraphs(topic)):
            yield text
    for path in files:
        with corpora.readable(path):
            source = path.read_bytes()
        for paragraphs in _docstrings.documents(source):
            if text := fresh(paragraphs):
                yield text
        tick(len(source))


def _topics() -> Path | None:
    """The file of Python's help topics, where the installation has it."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    return path if path.is_file() else None


def _topic_texts(path: Path) -> Iterator[str]:
    """Streams the values of the file's dictionary, a literal: nothing is run."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for value in node.value.values:
                yield ast.literal_eval(value)


def _files() -> list[Path]:
    """Source files in their fixed order: the standard library, then the packages, each by path."""
    roots = [Path(sysconfig.get_path("stdlib"))]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots.append(Path(spec.submodule_search_locations[0]))
    found = []
    for root in roots:
        paths = (path.relative_to(root) for path in root.rglob("*.py"))
        kept = (
            p for p in paths if not SKIPPED.intersection(p.parts) and not p.stem.endswith("_test")
        )
        found.extend(root / path for path in sorted(kept, key=lambda path: path.parts))
    return found
