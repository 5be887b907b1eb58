"""Reports the likelihood of documents: tables on the terminal, files in a folder."""

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING, Any

from scalelab.lab import tables

if TYPE_CHECKING:
    from scalelab.eval.likelihood import Documents, Reading
    from scalelab.runs.pretrained import Pretrained

MEASURES = {"clm": "log-likelihood", "mlm": "pseudo-log-likelihood"}
PERPLEXITY = {"clm": "perplexity", "mlm": "pseudo_perplexity"}


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of one document, or of all.

    Attributes:
      tokens: number of tokens of the text.
      predicted: number of them that were predicted.
      num_bytes: UTF-8 bytes of the text.
      nll: nats, summed over the predicted tokens.
    """

    tokens: int
    predicted: int
    num_bytes: int
    nll: float

    @property
    def loss(self) -> float | None:
        """Nats per predicted token; None: there is nscore."""
        return self.nll / self.predicted if self.predicted else None

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte as in `scalelab.runs.metrics`; None: no token is predicted."""
        from scalelab.runs.metrics import bits_per_byte

        return None if self.loss is None else bits_per_byte(self.loss, self.tokens, self.num_bytes)


def add_up(scores: list[Score]) -> Score:
    """Returns the score of all documents."""
    return Score(
        tokens=sum(score.tokens for score in scores),
        predicted=sum(score.predicted for score in scores),
        num_bytes=sum(score.num_bytes for score in scores),
        nll=math.fsum(score.nll for score in scores),
    )


def describe(
    opened: "Pretrained", reading: "Reading", corpus: str, split: str, scores: list[Score]
) -> dict[str, Any]:
    """Returns the content of result.json.

    Args:
      opened: the run.
      reading: how its net reads documents.
      corpus: its name on the command line.
      split: of the corpus.
      scores: of the documents.

    Raises:
      ValueError: no document has a token that is predicted.
    """
    total = add_up(scores)
    if total.loss is None:
        raise ValueError(
            f"corpus {corpus}: no document of its {split} split has a token to predict"
        )
    objective = "clm" if reading.mask_id is None else "mlm"
    return {
        "status": "completed",
        "task": "lm",
        "measure": MEASURES[objective],
        "run": str(opened.path),
        "system": opened.config.system,
        "step": opened.step,
        "corpus": corpus,
        "split": split,
        "context": reading.row_length(reading.context),
        "stride": reading.stride,
        "documents": len(scores),
        "tokens": total.tokens,
        "predicted": total.predicted,
        "bytes": total.num_bytes,
        "nll": total.nll,
        "loss": total.loss,
        PERPLEXITY[objective]: math.exp(min(total.loss, 700.0)),
        "bits_per_byte": total.bits_per_byte,
    }


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def total_table(facts: dict[str, Any]) -> str:
    """Formats the line for all documents, given the content of result.json."""
    counts = ("documents", "tokens", "predicted", "bytes")
    row = [f"{facts[name]:,}" for name in counts]
    if facts["measure"] == MEASURES["clm"]:
        header = ["loss", "perplexity"]
        row += [_number(facts["loss"]), _number(facts["perplexity"], 3)]
    else:
        header = ["PLL/token", "pseudo-perplexity"]
        row += [_number(-facts["loss"]), _number(facts["pseudo_perplexity"], 3)]
    header = [*counts, *header, "bits/byte"]
    return tables.plain(header, [[*row, _number(facts["bits_per_byte"])]], 0)


def document_table(scores: list[Score], openings: list[str], show: int) -> str:
    """Formats the worst and the best documents by bits per byte."""
    known = [i for i, score in enumerate(scores) if score.predicted]
    known.sort(key=lambda i: (-(scores[i].bits_per_byte or 0.0), i))
    rows = [
        [
            " ".join(openings[i].split()), str(i), f"{scores[i].tokens:,}",
            f"{scores[i].num_bytes:,}", _number(scores[i].loss), _number(scores[i].bits_per_byte),
        ]
        for i in known
    ]  # fmt: skip
    if len(rows) > 2 * show:
        rows = [*rows[:show], ["..."] + [""] * 5, *rows[-show:]]
    header = ["documents, worst first", "index", "tokens", "bytes", "loss", "bits/byte"]
    return tables.plain(header, rows)


def notes(opened: "Pretrained", documents: "Documents") -> list[str]:
    """Lists what makes bits per byte incomparable."""
    found = []
    if opened.config.tokenizer.lowercase:
        found.append("the tokenizer lowers case: capital letters are not predicted")
    unknown = opened.tokenizer.special_ids.get("unk")
    count = 0 if unknown is None else int((documents.tokens == unknown).sum())
    if count:
        found.append(f"{count:,} tokens are unknown: their text is not predicted")
    return found


def write(workdir: pathlib.Path, scores: list[Score], facts: dict[str, Any]) -> None:
    """Writes documents.tsv, environment.json and result.json.

    Args:
      workdir: the folder; made if absent.
      scores: of each document.
      facts: the content of result.json.
    """
    from scalelab.helpers.files import write_json
    from scalelab.runs import environment

    workdir.mkdir(parents=True, exist_ok=True)
    lines = ["document\ttokens\tpredicted\tbytes\tnll\tbits_per_byte"]
    for i, score in enumerate(scores):
        bits = "" if score.bits_per_byte is None else f"{score.bits_per_byte:.6f}"
        lines.append(
            f"{i}\t{score.tokens}\t{score.predicted}\t{score.num_bytes}\t{score.nll:.6f}\t{bits}"
        )
    (workdir / "documents.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(workdir / "environment.json", environment.describe())
    write_json(workdir / "result.json", facts)
