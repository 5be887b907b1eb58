"""Tables of text: plain for a terminal, Markdown and CSV."""

import csv
import io
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def plain(header: Sequence[str], rows: Rows, num_names: int = 1) -> str:
    """Aligns columns with spaces: the first `num_names` to the left, the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    aligned = [
        [
            cell.ljust(width) if i < num_names else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    aligned.insert(1, ["-" * width for width in widths])
    return "".join("  ".join(line).rstrip() + "\n" for line in aligned)


def markdown(header: Sequence[str], rows: Rows, num_names: int = 1) -> str:
    """A Markdown table, aligned in the same way."""
    marks = ["---" if i < num_names else "--:" for i in range(len(header))]
    lines = [header, marks, *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """CSV; None becomes an empty field, and floats keep all digits."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue()
