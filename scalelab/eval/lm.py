"""How well a pre-trained net predicts text: loss, perplexity and bits per byte of documents.

  python -m scalelab.eval.lm --run=RUN --corpus=wikitext:DIR [--split=valid] [--workdir=DIR]

RUN is a run folder: a pre-training, or an import from Hugging Face. For gpt and gpt2 the measure is
the log-likelihood; for bert and roberta the pseudo-log-likelihood (PLL), which hides each token in
turn and so costs a pass a token. The two do not compare with each other.

What is scored is a document's text as training reads it: its sentences joined by single spaces.
Special tokens are not scored. Losses are nats a predicted token. Bits per byte are loss x tokens /
(bytes x ln 2), as in the validation of a training: the bytes are those of that text in UTF-8, the
same for every tokenizer; all tokens count, so the mean loss stands for the first token of a
document, which a causal net does not predict. A tokenizer that lowers case or replaces what it does
not know predicts less than the bytes hold; a note below the table says so.

A document that is longer than the context is read in windows that move on by the stride; each token
is scored once. A causal net has at least context - stride tokens before it, a masked net half as
many on either side (the document's ends apart).

Under --workdir: documents.tsv (a line a document), result.json, environment.json.
"""

import argparse
import pathlib
import time
from typing import TYPE_CHECKING

from scalelab.config import cli
from scalelab.eval import lm_report

if TYPE_CHECKING:
    from scalelab.eval.likelihood import Documents, Reading
    from scalelab.eval.placement import Placed
    from scalelab.runs.pretrained import Pretrained


def positive(text: str) -> int:
    """Parses a whole number from 1 on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


NUMBERS = (  # flag, default, help
    ("context", None, "tokens of a row, special ones included; default: the longest of training"),
    ("stride", None, "tokens by which a window moves on; default: half of those that it holds"),
    ("max_docs", None, "score only the first N documents"),
    ("batch_size", 16, "windows of the full context in a batch; default: 16"),
    ("show", 3, "number of worst and of best documents in the table; default: 3"),
    ("tensor_parallel", 1, "devices that share the net; default: 1"),
)


def parser() -> cli.Parser:
    """Makes the parser of the command line."""
    made = cli.Parser(
        prog="python -m scalelab.eval.lm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of the net")
    made.add_argument("--corpus", required=True, help="as of a training: wikitext:DIR, text:GLOB")
    made.add_argument("--split", default="valid", help="train, valid or test; default: valid")
    made.add_argument("--workdir", type=pathlib.Path, help="folder to make, for all numbers")
    made.add_argument(
        "--errors",
        choices=("strict", "replace"),
        help="what invalid UTF-8 does: stop, or become a replacement character; default: as in the"
        " run's training",
    )
    for name, default, text in NUMBERS:
        made.add_argument(f"--{name}", type=positive, metavar="N", default=default, help=text)
    return made


def make_reading(opened: "Pretrained", context: int | None, stride: int | None) -> "Reading":
    """Decides how the net of a run reads documents.

    Args:
      opened: the run.
      context: tokens of a row, special ones included; None: the longest of its training.
      stride: tokens; None: half of a row's text.

    Raises:
      ValueError: the net predicts no tokens, or context or stride does not fit it.
    """
    from scalelab.eval.likelihood import Reading

    config, frame = opened.config, opened.tokenizer.frame()
    if not lm_report.MEASURES.keys() & set(config.objectives):
        raise ValueError(
            f"{opened.path} was trained on {config.objective!r}; expected clm or mlm, which predict"
            " tokens"
        )
    causal = "clm" in config.objectives
    length = trained_length(opened) if context is None else context
    if length > config.net.max_len:
        raise ValueError(
            f"--context={length} exceeds the net's {config.net.max_len} positions: give fewer"
        )
    end = () if causal else frame.end
    room = length - len(frame.begin) - len(end)
    # What comes first in a causal row is not predicted, so windows must share a token.
    most = room - 1 if causal and not frame.begin else room
    if most < 1:
        raise ValueError(f"--context={length} is too short: give at least {length - most + 1}")
    stride = max(1, room // 2) if stride is None else stride
    if stride > most:
        raise ValueError(
            f"--stride={stride}: with a context of {length} tokens it can be at most {most}"
        )
    mask_id = None if causal else opened.tokenizer.special_ids["mask"]
    return Reading(frame.begin, end, mask_id, room, stride)


def trained_length(opened: "Pretrained") -> int:
    """Returns the longest example of a run's training, or all positions of an import."""
    from scalelab.runs.run_folder import read_json

    config = opened.config
    if "imported" in (read_json(opened.path / "result.json") or {}):
        return config.net.max_len
    return max(phase.max_len for phase in config.phases)


def score(
    placed: "Placed", documents: "Documents", reading: "Reading", batch_size: int
) -> list[lm_report.Score]:
    """Scores documents, with a progress bar.

    Args:
      placed: the net on its devices.
      documents: the documents.
      reading: how the net reads them.
      batch_size: windows of the full context in a batch.

    Raises:
      ValueError: the net's scores are not finite.
      cli.Stopped: the device has too little memory.
    """
    import numpy as np

    from scalelab.eval import likelihood
    from scalelab.helpers.progress import show_bar

    rows = likelihood.lay_rows(documents.starts, reading)
    batches = likelihood.plan(rows, reading, batch_size, placed.ways)
    total = sum(len(batch.rows) * batch.length for batch in batches)
    try:
        with show_bar("scores", total, show=True, unit=" positions") as tick:
            nats = likelihood.token_nats(placed, documents.tokens, rows, batches, reading, tick)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise cli.Stopped(
            f"the device ran out of memory: use a smaller --batch_size than {batch_size}"
        ) from None
    scores, starts = [], documents.starts
    for begin, end, size in zip(starts, starts[1:], documents.num_bytes, strict=False):
        own = nats[begin:end]
        known = own[~np.isnan(own)]
        scores.append(
            lm_report.Score(len(own), len(known), size, float(known.sum(dtype=np.float64)))
        )
    return scores


def read(given: argparse.Namespace, opened: "Pretrained") -> "Documents":
    """Reads the documents that the command line names.

    Raises:
      ValueError: corpus or split is not there, or cannot be read.
    """
    from scalelab.data.corpora import open_corpus
    from scalelab.eval import likelihood
    from scalelab.helpers.progress import show_bar

    data = opened.config.data
    try:
        corpus = open_corpus(
            given.corpus,
            keep_headings=data.keep_headings,
            errors=given.errors or data.errors,
            valid_rate=data.valid_rate,
        )
        size = 0 if given.max_docs else corpus.source.num_bytes.get(given.split, corpus.num_bytes)
        with show_bar("documents", size, show=True) as tick:
            tokenizer = opened.tokenizer
            return likelihood.read_documents(corpus, given.split, given.max_docs, tokenizer, tick)
    except ValueError as error:  # which names a flag of the trainings
        raise ValueError(str(error).replace("--config.data.errors", "--errors")) from error


def evaluate(given: argparse.Namespace) -> None:
    """Evaluates the run that the command line names.

    Raises:
      ValueError: run, corpus or arguments do not allow it.
    """
    workdir = given.workdir
    if workdir and workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ValueError(f"--workdir={workdir} is in use: choose another, or delete it")
    from scalelab.eval import placement
    from scalelab.runs import environment, pretrained, run_folder

    opened = pretrained.load(given.run)
    config = opened.config
    reading = make_reading(opened, given.context, given.stride)
    documents = read(given, opened)
    environment.configure_jax(config.machine.compile_cache_dir, config.net.dtype)
    begun = time.perf_counter()
    placed = placement.place(opened, given.tensor_parallel)
    scores = score(placed, documents, reading, given.batch_size)
    facts = lm_report.describe(opened, reading, given.corpus, given.split, scores)
    facts |= {"notes": lm_report.notes(opened, documents), "seconds": time.perf_counter() - begun}
    print(f"{facts['measure']} of {run_folder.name(config)}, step {opened.step}, on {given.corpus}")
    print(f"split {given.split}, context {facts['context']}, stride {facts['stride']}\n")
    print(lm_report.total_table(facts))
    print(lm_report.document_table(scores, documents.openings, given.show), end="")
    print("".join(f"* {note}\n" for note in facts["notes"]), end="")
    if workdir:
        lm_report.write(workdir, scores, facts)
        print(f"wrote {workdir}/documents.tsv and result.json")


def main(arguments: list[str] | None = None) -> None:
    """Runs the program; a mistake of the user ends in one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("nothing was written"):
        evaluate(given)


if __name__ == "__main__":
    main()
