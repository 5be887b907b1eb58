"""Every paper that the project cites has an entry in the bibliography of docs/literature.md."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLACES = ("scalelab/**/*.py", "configs/**/*.py", "benchmarks/*.py", "benchmarks/*.md",
          "launch/**/*.sh", "docs/**/*.md", "zoo/**/*.md", "README.md",
          "CONTRIBUTING.md")  # fmt: skip
NAME, YEAR = r"[A-Z][\w-]*[a-z]", r"(?:1[89]|20)\d\d[a-d]?"
NO_AUTHORS = "Challenge|Munich"  # "the BabyLM Challenge 2026", "LMU Munich, 2020"
CITATION = re.compile(
    rf"\b(?!{NO_AUTHORS})({NAME}(?: et al\.| and {NAME})?),? \(?({YEAR}(?:, {YEAR})*)\b"
)


def citations(text: str) -> set[tuple[str, str]]:
    """Returns (authors, year) of each citation; it may go on in the next line or string."""
    text = re.sub(r'"?\n\s*(?:#:? |")?', " ", text)
    return {(who, year) for who, years in CITATION.findall(text) for year in years.split(", ")}


def test_the_bibliography_has_every_cited_paper() -> None:
    page = ROOT / "docs/literature.md"
    before, _, table = page.read_text().partition("## Bibliography")
    known = citations("\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    paths = {path for place in PLACES for path in ROOT.glob(place) if "history" not in path.parts}
    cited = set.union(citations(before), *(citations(p.read_text()) for p in paths - {page}))
    assert len(cited) > 140 and not cited - known, sorted(cited - known)


def test_citations_are_found_in_all_spellings() -> None:
    text = "# Abe et\n# al. (2001, 3); "
    text += 'Bo-Chi and Dao 1999, 2000b, 4.1; "Elm" 7;\n "Fox and"\n "Gnu 1908"'
    assert citations(text) == {
        ("Abe et al.", "2001"), ("Bo-Chi and Dao", "1999"), ("Bo-Chi and Dao", "2000b"),
        ("Fox and Gnu", "1908"),
    }  # fmt: skip
