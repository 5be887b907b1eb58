"""WikiText's layout: lines into sections."""

import re
from collections.abc import Iterable, Iterator

_HEADING = re.compile(r" (=(?: =)*) (\S.*?) (=(?: =)*) ?")


def is_heading(line: str) -> bool:
    """Returns True for a line in a heading's form: ` = Title = `, as many signs before as after."""
    match = _HEADING.fullmatch(line)
    return match is not None and match[1] == match[3]


def sections(lines: Iterable[str], keep_headings: bool) -> Iterator[str]:
    """Streams the sections of a file as documents: the text between headings of any depth.

    A heading has a blank line on either side. A line such as ` = Wins , L = ` inside a paragraph,
    where some formula or table was torn apart, is text. A section without text is no document.

    Args:
      lines: the file's lines, without line breaks.
      keep_headings: whether the heading's line begins its document.

    Yields:
      The paragraphs of a section, stripped, joined by line breaks.
    """
    heading: list[str] = []
    paragraphs: list[str] = []
    previous, current = "", None
    for following in _and_blank(lines):
        if current is not None:
            bounded = not previous.strip() and not following.strip()
            if bounded and is_heading(current):
                if paragraphs:
                    yield "\n".join(heading + paragraphs)
                heading, paragraphs = [current.strip()] if keep_headings else [], []
            elif stripped := current.strip():
                paragraphs.append(stripped)
            previous = current
        current = following
    if paragraphs:
        yield "\n".join(heading + paragraphs)


def _and_blank(lines: Iterable[str]) -> Iterator[str]:
    yield from lines
    yield ""
