"""Docstrings and help topics into paragraphs of plain English."""

import ast
import inspect
import re
import warnings
from collections.abc import Iterator

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
MIN_SHARE = 0.75  # of a paragraph's words that must look like words of English


def documents(source: bytes) -> Iterator[list[str]]:
    """Streams the documents of one Python file: the module with its functions, then each class.

    Nothing is run or imported. A file that does not parse has none.

    Args:
      source: the file's content.

    Yields:
      A document's paragraphs; never an empty document.
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
    others = [node for node in module.body if not isinstance(node, ast.ClassDef)]
    whole = [_docstring(module)] + [text for node in others for text in _docstrings(node)]
    for texts in [whole, *(list(_docstrings(node)) for node in classes)]:
        found = [paragraph for text in texts for paragraph in paragraphs(text)]
        if found:
            yield found


def paragraphs(docstring: str) -> list[str]:
    """Returns what reads as English in a docstring or help topic: paragraphs, their lines joined.

    Section titles, doctests, code, tables, signatures and the like are left out, and so is markup.
    """
    kept = []
    for block in _blocks(inspect.cleandoc(docstring)):
        text = _plain(block)
        if _is_prose(text):
            kept.append(text)
    return kept


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a definition and of those inside it, in the order of the file."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield _docstring(node)
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                yield from _docstrings(child)


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.get_docstring(node, clean=False) or ""


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
    if not (text[0].isupper() or text[0] in "\"'(“"):
        return False
    return sum(1 for word in words if _WORD.fullmatch(word.lstrip("(\"'“"))) >= MIN_SHARE * len(
        words
    )
