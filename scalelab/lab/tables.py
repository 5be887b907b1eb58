"""Tables of words and numbers: plain text for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]

# What LaTeX would read as a command, as what prints it.
ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


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


def latex(
    header: Sequence[str],
    rows: Rows,
    num_names: int = 1,
    *,
    caption: str,
    label: str,
    footer: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    r"""A LaTeX table that needs the packages booktabs and graphicx.

    A rule stands between rows whose first cells differ, and one above the footer.

    Args:
      header: of the columns, in words.
      rows: their cells, in words; everything is escaped.
      num_names: columns aligned to the left.
      caption: below the table.
      label: for \ref, without "tab:".
      footer: a last row.
      notes: below the caption, in small print.
    """
    columns = "l" * num_names + "r" * (len(header) - num_names)
    lines = [
        r"\begin{table}[tb]",
        r"\centering\small",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_row(header),
        r"\midrule",
    ]
    for before, row in zip([None, *rows], rows, strict=False):
        lines += [r"\midrule"] if before and before[0] != row[0] else []
        lines.append(_latex_row(row))
    lines += [r"\midrule", _latex_row(footer)] if footer else []
    lines += [r"\bottomrule", r"\end{tabular}}", rf"\caption{{{escape_latex(caption)}}}"]
    lines.append(rf"\label{{tab:{label}}}")
    if notes:
        lines += [r"\par\raggedright\footnotesize"]
        lines += [rf"{escape_latex(note)}\par" for note in notes]
    return "\n".join([*lines, r"\end{table}", ""])


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda found: ESCAPES[found[0]], text)


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """CSV; None becomes an empty field, and floats keep all digits."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue()


def _latex_row(cells: Sequence[str]) -> str:
    # A row that began with [ would read as the argument of \\ before it.
    return " & ".join(escape_latex(c).replace("[", "{[}") for c in cells) + r" \\"
