"""`builtin`: the documentation inside this Python installation; needs no download.

Help topics and docstrings of the standard library and of some dependencies, read from their source
files without importing them: technical English in a fixed order. Machines with the same versions
have the same text and corpus hash.
"""

import ast
import hashlib
import importlib.util
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora
from scalelab.helpers.files import reading

VERSION = "1"
VALID_RATE = 0.005  # stays, because published losses on this text depend on its split
PACKAGES = (
    "numpy", "scipy", "jax", "flax", "optax", "orbax", "matplotlib", "absl", "ml_collections",
    "etils",
)  # fmt: skip
TOPICS = "pydoc_data/topics.py"  # in the standard library: a dictionary of help texts
# Tests and bundled code have little to read; site-packages lies inside the library's folder.
SKIPPED = {
    "test", "tests", "testing", "examples", "_vendor", "distutils", "encodings", "idlelib",
    "lib2to3", "site-packages", "dist-packages",
}  # fmt: skip
_ROLE = re.compile(r":[\w:+-]+:`~?([^`<]+?)(?:\s*<[^`]*>)?`")
_LINK = re.compile(r"`+([^`<]+?)\s*<[^`>]*>`+_*|\[([^\]]+)\]\([^)\s]*\)")
_LITERAL = re.compile(r"`+([^`]+)`+_*")
_FOOTNOTE = re.compile(r"\s*\[(?:\d+|#\w*)\]_")
_SPACES = re.compile(r"\s+")
# What begins a paragraph of its own, and is dropped: a bullet, a number, `name:` or `name (type):`.
_ITEM = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)])\s+|\*{0,2}\w+(?:, \*{0,2}\w+)*(?: ?\([^()]*\))?:\s+")
_NOT_PROSE = re.compile(r">>>|\.\. |\.\.\.|\||[-=~^#*+]{3}|:\w+[^:]*:|@|\$|In \[\d+\]")
_WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][a-z]+)*[,;:.?!)\"]*")
_ENDS = re.compile(r"[.?!][)\"'”]*$")
_UNDERLINE = re.compile(r"[-=~^#*+]{3,}")
MIN_WORDS = 6
MIN_SHARE = 0.75  # this share of a paragraph's words must look English


def read(argument: str, settings: corpora.Data) -> corpora.Source:
    """Opens the corpus; raises ValueError if an argument was given."""
    del settings
    if argument:
        raise ValueError(f"corpus builtin takes no argument, got {argument!r}")
    files = source_files()
    return corpora.Source(
        streams={"train": lambda tick: _documents(files, tick)},
        num_bytes={"train": sum(path.stat().st_size for path in files)},
        identity=lambda: _identity(files),
    )


def source_files() -> list[Path]:
    """Lists the help topics' file, then the standard library, then the packages, each by path."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    roots = [stdlib]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots.append(Path(spec.submodule_search_locations[0]))
    topics = stdlib / TOPICS
    found = [topics] if topics.is_file() else []
    for root in roots:
        paths = (path.relative_to(root) for path in root.rglob("*.py"))
        kept = (
            p for p in paths if not SKIPPED.intersection(p.parts) and not p.stem.endswith("_test")
        )
        found.extend(root / path for path in sorted(kept, key=lambda path: path.parts))
    return found


def _identity(files: list[Path]) -> str:
    """Returns one hash over names and contents, in order, whatever the installation's path."""
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.parent.name}/{path.name}\n".encode())
        whole.update(bytes.fromhex(corpora.digest(path)))
    return whole.hexdigest()


def _documents(files: list[Path], tick: corpora.Tick) -> Iterator[str]:
    """Streams the documents, without repeated paragraphs (on common arguments, say)."""
    seen: set[bytes] = set()
    for path in files:
        with reading(path):
            source = path.read_bytes()
        for texts in _topics(source) if path.match(TOPICS) else docstrings(source):
            kept = []
            for paragraph in (paragraph for text in texts for paragraph in paragraphs(text)):
                mark = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
                if mark not in seen:
                    seen.add(mark)
                    kept.append(paragraph)
            if kept:
                yield "\n".join(kept)
        tick(len(source))


def _topics(source: bytes) -> Iterator[list[str]]:
    """Streams the values of the file's dictionary, a literal: nothing is run."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for value in node.value.values:
                yield [ast.literal_eval(value)]


def docstrings(source: bytes) -> Iterator[list[str]]:
    """Streams the docstrings of each document of a Python file, which is not run.

    A document is the module with its functions, or a class. A file that does not parse has none.
    """
    if b'"""' not in source and b"'''" not in source:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    statements = [node for node in module.body if not isinstance(node, ast.ClassDef)]
    first = ast.get_docstring(module, clean=False) or ""
    yield [first, *(text for node in statements for text in _docstrings(node))]
    yield from (list(_docstrings(node)) for node in classes)


def paragraphs(docstring: str) -> list[str]:
    """Returns the English paragraphs of a docstring or help topic, each as one line.

    Section titles, doctests, code, tables, signatures and the like are left out, and so is markup.
    """
    return list(filter(_is_prose, map(_plain, _blocks(inspect.cleandoc(docstring)))))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a definition and of those inside it, in the order of the file."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node, clean=False) or ""
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                yield from _docstrings(child)


def _blocks(text: str) -> Iterator[str]:
    """Cuts at blank lines, at the beginning of an item, and where the indentation changes."""
    lines: list[str] = []
    indents: list[int] = []
    in_item = False
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        item = _ITEM.match(stripped)
        if _UNDERLINE.fullmatch(stripped):  # a title stands above it
            lines, stripped = lines[:-1], ""
        goes_on = lines and stripped and not item
        if in_item and goes_on:
            goes_on = indent > indents[0]
        elif goes_on:
            goes_on = indent == indents[0]
        if not goes_on:
            if lines:
                yield "\n".join(lines)
            lines, indents, in_item = [], [], bool(item)
        if stripped:
            lines.append(stripped[item.end() :] if item else stripped)
            indents.append(indent)


def _plain(text: str) -> str:
    text = _ROLE.sub(r"\1", text)
    text = _LINK.sub(lambda match: match[1] or match[2], text)
    text = _LITERAL.sub(r"\1", text)
    text = _FOOTNOTE.sub("", text).replace("**", "").replace("\\", "")
    return _SPACES.sub(" ", text).strip()


def _is_prose(text: str) -> bool:
    words = text.split(" ")
    if len(words) < MIN_WORDS or not _ENDS.search(text) or _NOT_PROSE.match(text):
        return False
    english = sum(1 for word in words if _WORD.fullmatch(word.lstrip("(\"'“")))
    return (text[0].isupper() or text[0] in "\"'(“") and english >= MIN_SHARE * len(words)
