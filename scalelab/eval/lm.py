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
not know predicts less than the bytes hold: this is said below the table.

A document that is longer than the context is read in windows that move on by the stride; each token
is scored once. A causal net has at least context - stride tokens before it, a masked net half as
many on either side (the document's ends apart).

Under --workdir: documents.tsv (a line a document), result.json, environment.json.
"""

import argparse
import pathlib
import time
from typing import Any

from scalelab.config import cli
from scalelab.eval import lm_report


def positive(text: str) -> int:
    """A whole number from 1 on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def parser() -> cli.Parser:
    """The command line."""
    made = cli.Parser(
        prog="python -m scalelab.eval.lm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    said = {
        "context": "tokens that the net sees at once, special ones included; default: as many as"
        " its training showed it",
        "stride": "tokens by which a window moves on; default: half of those that it holds",
        "max_docs": "score only so many documents, the first",
        "batch_size": "windows of the full context in a batch; default: 16",
        "show": "so many of the worst and of the best documents; default: 3",
    }
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
    for name, text in said.items():
        default = {"batch_size": 16, "show": 3}.get(name)
        made.add_argument(f"--{name}", type=positive, metavar="N", default=default, help=text)
    return made


def reading_of(opened: Any, context: int | None, stride: int | None) -> Any:
    """How the net of a run reads documents.

    Args:
      opened: a `scalelab.runs.pretrained.Pretrained`.
      context: tokens of a row, special ones included; None: the longest of its training.
      stride: tokens; None: half of a row's text.

    Returns:
      A `scalelab.eval.likelihood.Reading`.

    Raises:
      ValueError: the net predicts no tokens, or cannot read so.
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


def trained_length(opened: Any) -> int:
    """The longest example of a run's training; of an import, which does not say, all positions."""
    from scalelab.runs.run_folder import read_json

    config = opened.config
    if "imported" in (read_json(opened.path / "result.json") or {}):
        return config.net.max_len
    return max(phase.max_len for phase in config.phases)


def score(opened: Any, texts: Any, reading: Any, batch_size: int) -> list[lm_report.Score]:
    """Scores documents, showing how far it is.

    Args:
      opened: a `scalelab.runs.pretrained.Pretrained`.
      texts: a `scalelab.eval.texts.Texts`.
      reading: from `reading_of`.
      batch_size: windows of the full context in a batch.

    Raises:
      ValueError: the net's scores are not finite.
      cli.Stopped: the device has too little memory.
    """
    import numpy as np

    from scalelab.eval import likelihood
    from scalelab.helpers.progress import show_bar

    net = opened.net
    rows = likelihood.rows_of(texts.starts, reading)
    batches = likelihood.plan(rows, reading, batch_size)
    total = sum(len(batch.rows) * batch.length for batch in batches)
    try:
        with show_bar("scores", total, show=True, unit=" positions") as tick:
            nats = likelihood.token_nats(
                net, opened.params, texts.tokens, rows, batches, reading, tick
            )
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise cli.Stopped(
            f"the device ran out of memory: use a smaller --batch_size than {batch_size}"
        ) from None
    scores = []
    for begin, end, size in zip(texts.starts, texts.starts[1:], texts.num_bytes, strict=False):
        own = nats[begin:end]
        known = own[~np.isnan(own)]
        scores.append(
            lm_report.Score(len(own), len(known), size, float(known.sum(dtype=np.float64)))
        )
    return scores


def check_workdir(workdir: pathlib.Path) -> None:
    """Refuses a folder that something is in.

    Raises:
      ValueError: it is in use.
    """
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ValueError(f"--workdir={workdir} is in use: choose another, or delete it")


def read(given: argparse.Namespace, opened: Any) -> Any:
    """The documents to score, a `scalelab.eval.texts.Texts`.

    Raises:
      ValueError: corpus or split is not there, or cannot be read.
    """
    from scalelab.data.corpora import open_corpus
    from scalelab.eval import texts
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
            return texts.read(corpus, given.split, given.max_docs, opened.tokenizer, tick)
    except ValueError as error:  # which names a flag of the trainings
        raise ValueError(str(error).replace("--config.data.errors", "--errors")) from error


def evaluate(given: argparse.Namespace) -> None:
    """Does what the command line says.

    Raises:
      ValueError: run, corpus or arguments do not allow it.
    """
    if given.workdir is not None:
        check_workdir(given.workdir)
    from scalelab.runs import environment, pretrained, run_folder

    opened = pretrained.load(given.run)
    config = opened.config
    reading = reading_of(opened, given.context, given.stride)
    texts = read(given, opened)
    environment.configure_jax(config.machine.compile_cache_dir, config.net.dtype)
    begun = time.perf_counter()
    scores = score(opened, texts, reading, given.batch_size)
    facts = lm_report.facts_of(opened, reading, given.corpus, given.split, scores)
    facts |= {"notes": lm_report.notes(opened, texts), "seconds": time.perf_counter() - begun}
    print(f"{facts['measure']} of {run_folder.name(config)}, step {opened.step}, on {given.corpus}")
    print(f"split {given.split}, context {facts['context']}, stride {facts['stride']}\n")
    print(lm_report.total_table(facts))
    print(lm_report.document_table(scores, texts.openings, given.show), end="")
    print("".join(f"* {note}\n" for note in facts["notes"]), end="")
    if given.workdir is not None:
        lm_report.write(given.workdir, scores, facts)
        print(f"wrote {given.workdir}/documents.tsv and result.json")


def main(arguments: list[str] | None = None) -> None:
    """The program; a mistake in its arguments, run or corpus is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("nothing was written"):
        evaluate(given)


if __name__ == "__main__":
    main()
