"""What is told of the likelihood of documents: tables on the terminal, files in a folder."""

import dataclasses
import math
import pathlib
from typing import Any

from scalelab.lab import tables

MEASURES = {"clm": "log-likelihood", "mlm": "pseudo-log-likelihood"}
PERPLEXITY = {"clm": "perplexity", "mlm": "pseudo_perplexity"}


@dataclasses.dataclass(frozen=True)
class Score:
    """Of one document, or of all.

    Attributes:
      tokens: of the text.
      predicted: those that were.
      num_bytes: of the text in UTF-8.
      nll: nats, summed over the predicted tokens.
    """

    tokens: int
    predicted: int
    num_bytes: int
    nll: float

    @property
    def loss(self) -> float | None:
        """Nats a predicted token; None: there is none."""
        return self.nll / self.predicted if self.predicted else None

    @property
    def bits_per_byte(self) -> float | None:
        """As `scalelab.runs.metrics` defines it; None: no token is predicted."""
        from scalelab.runs.metrics import bits_per_byte

        return None if self.loss is None else bits_per_byte(self.loss, self.tokens, self.num_bytes)


def total_of(scores: list[Score]) -> Score:
    """All documents as one."""
    return Score(
        tokens=sum(score.tokens for score in scores),
        predicted=sum(score.predicted for score in scores),
        num_bytes=sum(score.num_bytes for score in scores),
        nll=math.fsum(score.nll for score in scores),
    )


def facts_of(
    opened: Any, reading: Any, corpus: str, split: str, scores: list[Score]
) -> dict[str, Any]:
    """The content of result.json.

    Args:
      opened: a `scalelab.runs.pretrained.Pretrained`.
      reading: a `scalelab.eval.likelihood.Reading`.
      corpus: as the user named it.
      split: of it.
      scores: of its documents.

    Raises:
      ValueError: none of them has a token that is predicted.
    """
    total = total_of(scores)
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
    """The line for all documents.

    Args:
      facts: from `facts_of`.
    """
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
    """The worst and the best documents by bits per byte."""
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


def notes(opened: Any, texts: Any) -> list[str]:
    """What makes bits per byte less than comparable."""
    said = []
    if opened.config.tokenizer.lowercase:
        said.append("the tokenizer lowers case: which letters were capitals is not predicted")
    unknown = opened.tokenizer.special_ids.get("unk")
    count = 0 if unknown is None else int((texts.tokens == unknown).sum())
    if count:
        said.append(f"{count:,} tokens are the unknown one: what they stand for is not predicted")
    return said


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
    for i, one in enumerate(scores):
        bits = "" if one.bits_per_byte is None else f"{one.bits_per_byte:.6f}"
        lines.append(f"{i}\t{one.tokens}\t{one.predicted}\t{one.num_bytes}\t{one.nll:.6f}\t{bits}")
    (workdir / "documents.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(workdir / "environment.json", environment.describe())
    write_json(workdir / "result.json", facts)
