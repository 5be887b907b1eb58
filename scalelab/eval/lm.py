"""Measures how well a model predicts text: loss, perplexity and bits per byte of documents.

  python -m scalelab.eval.lm --run=RUN --corpus=wikitext:DIR [--split=valid] [--workdir=DIR]

RUN is a run folder: a pre-training, or an import from Hugging Face. For gpt and gpt2 the measure is
the log-likelihood. For bert and roberta it is the pseudo-log-likelihood (PLL), which masks each
token in turn and so costs one pass for each token. The two measures are not comparable. A model
that reads a source predicts the text after the source that its system declares for single texts,
such as one blank; a note says if pre-training had no such source.

The text of a document is the same as in training: its sentences joined by single spaces. Special
tokens are not scored. Losses are nats per predicted token. Bits per byte are loss x tokens / (bytes
x ln 2), as in the validation of a training. `bytes` are the UTF-8 bytes of the text, equal for
every tokenizer. `tokens` are all tokens: without a token before a document a causal model does not
predict the first one, and the mean loss is used for it. The 95% interval is over documents. A
tokenizer that lowers case or replaces unknown text predicts less than the text; a note below the
table says so.

A document longer than the context is read in windows that start `stride` tokens apart; each token
is scored once. In a causal model it has at least context - stride tokens before it, in a masked
model at least half of them on each side (except at the document's ends). For a model with a memory,
windows do not overlap: each window sees the memory of the windows before it, as in training. The
memory of a masked model comes from the text without masks.

The calibration error is the mean distance between the probability of a model's best guesses and
the share of right guesses (scalelab/eval/calibration.py).

Under --workdir: documents.tsv (a line for each document), calibration.tsv (a line for each bin),
result.json, environment.json.
"""

import argparse
import dataclasses
import math
import pathlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scalelab.config import cli

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from scalelab.eval.likelihood import Documents, Reading
    from scalelab.training.pretrained import Pretrained

MEASURES = {"next": "log-likelihood", "masked": "pseudo-log-likelihood"}
PERPLEXITY = {"next": "perplexity", "masked": "pseudo_perplexity"}
NUMBERS = (  # flag, default, help
    ("context", None, "tokens of a row, special ones included; default: the longest of training"),
    ("stride", None, "tokens by which a window moves on; default: half of those that it holds"),
    ("max_docs", None, "score only the first N documents"),
    ("show", 3, "documents in the table: the N worst and the N best; default: 3"),
    ("batch_size", 16, "windows of the full context in a batch; default: 16"),
    ("tensor_parallel", 1, "devices that share the model; default: 1"),
    ("step", None, "checkpoint of this training step; default: the newest"),
)


def add_flags(made: cli.Parser, numbers: Iterable[tuple[str, int | None, str]]) -> None:
    """Adds the flags that name run, corpus and folder, and those of numbers (as in NUMBERS)."""
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of the model")
    made.add_argument("--corpus", required=True, help="as of a training: wikitext:DIR, text:GLOB")
    made.add_argument("--split", default="valid", help="train, valid or test; default: valid")
    made.add_argument("--workdir", type=pathlib.Path, help="folder to make, for all numbers")
    for name, default, text in numbers:
        made.add_argument(f"--{name}", type=cli.positive, metavar="N", default=default, help=text)


def parser() -> cli.Parser:
    """Makes the parser of the command line."""
    made = cli.Parser("python -m scalelab.eval.lm", __doc__)
    add_flags(made, NUMBERS)
    made.add_argument(
        "--errors",
        choices=("strict", "replace"),
        help="what invalid UTF-8 does: stop, or become a replacement character; default: as in the"
        " run's training",
    )
    made.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help="replaces an option of the system, such as the length of its memory; may be repeated",
    )  # fmt: skip
    return made


def has_memory(opened: "Pretrained") -> bool:
    """Returns True if a window's predictions depend on the windows before it."""
    return opened.system.ORDER == "contiguous"


def make_reading(opened: "Pretrained", context: int | None, stride: int | None) -> "Reading":
    """Returns the way in which the model of a run reads documents.

    Args:
      opened: the run.
      context: tokens of a row, special tokens included; None: the longest of its training.
      stride: in tokens; None: half of a row's text.

    Raises:
      ValueError: the model predicts no tokens, or context or stride does not fit it.
    """
    from scalelab.eval import likelihood

    config = opened.config
    if opened.predicts is None:
        raise ValueError(
            f"{opened.path} was trained on {config.objective!r}, which predicts no tokens; expected"
            " an objective that does, such as clm or mlm"
        )
    causal = opened.predicts == "next"
    trained = max(phase.max_len for phase in config.phases)
    length = context or (trained if opened.step else config.model.max_len)  # an import has no steps
    if length > config.model.max_len:
        raise ValueError(
            f"--context={length} exceeds the model's {config.model.max_len} positions: give fewer"
        )
    made = likelihood.make_reading(opened, causal=causal, masked=not causal, length=length)
    room = made.context
    if has_memory(opened):
        if stride not in (None, room):
            raise ValueError(
                f"--stride={stride}: {config.system} has a memory, so its windows do not overlap:"
                " leave --stride out"
            )
        return made
    # The first token of a causal row is not predicted, so windows must share a token.
    most = room - 1 if causal and not made.begin else room
    if most < 1:
        raise ValueError(f"--context={length} is too short: give at least {length - most + 1}")
    stride = max(1, room // 2) if stride is None else stride
    if stride > most:
        raise ValueError(
            f"--stride={stride}: with a context of {length} tokens it can be at most {most}"
        )
    return made._replace(stride=stride)


def with_options(opened: "Pretrained", changes: list[str]) -> "Pretrained":
    """Returns the run with some options of its system replaced.

    Args:
      opened: the run.
      changes: strings NAME=VALUE.

    Raises:
      ValueError: the system has no such option, or the parameters do not fit the new options.
    """
    import dataclasses

    import jax

    from scalelab.config.fields import make_options, parse_fields
    from scalelab.helpers.names import check_names
    from scalelab.objectives import abstract_variables

    if not changes:
        return opened
    values = parse_fields(changes)
    known = vars(make_options(opened.system, {}) or argparse.Namespace())
    check_names(values, known, f"--option: {opened.config.system} has no option")
    options = {**opened.config.system_options, **values}
    config = dataclasses.replace(opened.config, system_options=options)
    made = dataclasses.replace(opened, config=config)
    wanted = abstract_variables(made.net, made.terms, max_len=config.short.max_len)["params"]
    shapes = [jax.tree.map(lambda x: x.shape, tree) for tree in (wanted, opened.params)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"--option={','.join(changes)}: the model would have other parameters; expected an"
            " option that leaves their shapes as they are"
        )
    return made


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
        settings = dataclasses.replace(data, errors=given.errors or data.errors)
        corpus = open_corpus(given.corpus, settings)
        size = 0 if given.max_docs else corpus.source.num_bytes.get(given.split, corpus.num_bytes)
        with show_bar("documents", size, show=True) as tick:
            tokenizer = opened.tokenizer
            return likelihood.read_documents(corpus, given.split, given.max_docs, tokenizer, tick)
    except ValueError as error:  # this message names a flag of `train`
        raise ValueError(str(error).replace("--config.data.errors", "--errors")) from error


# --- Scores ----------------


def score_documents(nats: "np.ndarray", documents: "Documents") -> "pd.DataFrame":
    """Adds up the scores of each document.

    Args:
      nats: [n], minus the log-probability of each token; NaN if not predicted.
      documents: the documents.

    Returns:
      A row for each document: its opening, numbers of tokens and of predicted tokens, bytes, nll in
      nats, loss in nats per predicted token, and bits_per_byte. The last two are NaN if nothing is
      predicted.
    """
    import numpy as np
    import pandas as pd

    parts = np.split(nats, documents.starts[1:-1])
    table = pd.DataFrame(
        {
            "opening": [" ".join(text.split()) for text in documents.openings],
            "tokens": [len(part) for part in parts],
            "predicted": [int((~np.isnan(part)).sum()) for part in parts],
            "bytes": documents.num_bytes,
            "nll": [float(np.nansum(part, dtype=np.float64)) for part in parts],
        }
    ).rename_axis("document")
    table["loss"] = table["nll"] / table["predicted"]
    table["bits_per_byte"] = table["loss"] * table["tokens"] / (table["bytes"] * math.log(2))
    return table


def summarize(table: "pd.DataFrame", predicts: str) -> dict[str, Any]:
    """Returns the totals over documents.

    Args:
      table: a row for each document.
      predicts: "next" or "masked".
    """
    from scalelab.eval import calibration
    from scalelab.records.metrics import bits_per_byte

    total = table[["tokens", "predicted", "bytes"]].sum().to_dict()
    nll = math.fsum(table["nll"])
    loss = nll / total["predicted"]
    parts = table[["nll", "predicted", "tokens", "bytes"]].to_numpy(float)
    _, interval = calibration.jackknife(
        parts, lambda x: x[:, 0] / x[:, 1] * x[:, 2] / x[:, 3] / math.log(2)
    )
    return {
        "documents": len(table),
        **total,
        "nll": nll,
        "loss": loss,
        PERPLEXITY[predicts]: math.exp(min(loss, 700.0)),
        "bits_per_byte": bits_per_byte(loss, total["tokens"], total["bytes"]),
        "bits_per_byte_interval": interval and [max(0.0, interval[0]), interval[1]],
    }


def describe(facts: dict[str, Any], table: "pd.DataFrame", shown: int) -> str:
    """Formats the line for all documents, and the worst and best by bits per byte.

    Args:
      facts: from `summarize`.
      table: a row for each document.
      shown: number of documents to list at either end.
    """
    from scalelab.eval import calibration
    from scalelab.lab import tables

    counts = ("documents", "tokens", "predicted", "bytes")
    masked = "pseudo_perplexity" in facts
    header = [*counts, *(("PLL/token", "pseudo-perplexity") if masked else ("loss", "perplexity"))]
    loss = -facts["loss"] if masked else facts["loss"]
    perplexity = facts[PERPLEXITY["masked" if masked else "next"]]
    row = [f"{facts[count]:,}" for count in counts]
    row += [f"{loss:,.4f}", f"{perplexity:,.3f}", f"{facts['bits_per_byte']:,.4f}"]
    row.append(calibration.show(facts["bits_per_byte_interval"]))
    known = table[table["predicted"] > 0].sort_values(
        "bits_per_byte", ascending=False, kind="stable"
    )
    rows = [
        [str(d.opening), str(d.Index), f"{d.tokens:,}", f"{d.bytes:,}", f"{d.loss:,.4f}",
         f"{d.bits_per_byte:,.4f}"]
        for d in known.itertuples()
    ]  # fmt: skip
    if len(rows) > 2 * shown:
        rows = [*rows[:shown], ["..."] + [""] * 5, *rows[-shown:]]
    columns = ["documents, worst first", "index", "tokens", "bytes", "loss", "bits/byte"]
    summary = tables.plain([*header, "bits/byte", "95% interval"], [row], 0)
    return f"{summary}\n{tables.plain(columns, rows)}"


def notes(opened: "Pretrained", documents: "Documents") -> list[str]:
    """Lists reasons why bits per byte are not comparable with other models or tokenizers."""
    from scalelab.records.metrics import describe_unknown

    found = [*opened.reading_notes]
    if opened.config.tokenizer.lowercase:
        found.append("the tokenizer lowers case: capital letters are not predicted")
    if count := opened.tokenizer.count_unknown(documents.tokens):
        found.append(describe_unknown(count, len(documents.tokens)))
    return found


def check_workdir(workdir: pathlib.Path | None) -> None:
    """Raises ValueError if the folder of --workdir holds something."""
    if workdir and workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ValueError(f"--workdir={workdir} is in use: choose another, or delete it")


def write(
    workdir: pathlib.Path, facts: dict[str, Any], table: "pd.DataFrame", **more: "pd.DataFrame"
) -> None:
    """Writes documents.tsv, more tables by name, environment.json and result.json."""
    from scalelab.helpers.files import write_json
    from scalelab.records import run_folder

    workdir.mkdir(parents=True, exist_ok=True)
    columns = ["tokens", "predicted", "bytes", "nll", "bits_per_byte"]
    for name, own in {"documents": table[columns], **more}.items():
        own.to_csv(workdir / f"{name}.tsv", sep="\t", float_format="%.6f")
    write_json(workdir / "environment.json", run_folder.describe_environment())
    write_json(workdir / "result.json", facts)
    names = ", ".join(f"{name}.tsv" for name in ("documents", *more))
    print(f"wrote {workdir}/{names} and result.json")


def main(given: argparse.Namespace) -> None:
    """Evaluates the run that the command line names.

    Raises:
      ValueError: run, corpus or arguments do not allow it.
    """
    check_workdir(given.workdir)
    from scalelab.eval import calibration, likelihood, placement, running_text, token_scores
    from scalelab.records import run_folder
    from scalelab.resources import host
    from scalelab.training import pretrained

    opened = with_options(pretrained.load(given.run, given.step), given.option)
    opened.check_alone(source=True)
    config = opened.config
    reading = make_reading(opened, given.context, given.stride)
    documents = read(given, opened)
    host.configure_jax(config.machine.compile_cache_dir, config.model.dtype)
    begun = time.perf_counter()
    placed = placement.place(opened, given.tensor_parallel)
    if not likelihood.lay_rows(documents.starts, reading).starts.size:
        raise ValueError("no document of the corpus has a token to predict")
    score = running_text.score if has_memory(opened) else likelihood.score
    found = score(
        placed, documents.tokens, documents.starts, reading, given.batch_size,
        judge=token_scores.guesses,
    )  # fmt: skip
    nats, best_nats, rank = found.T
    table = score_documents(nats, documents)
    bins = calibration.bin_guesses(best_nats, rank == 0, documents.starts)
    reliability = calibration.reliability(bins.sum(axis=0))
    predicts = "next" if reading.mask_id is None else "masked"
    facts = {
        "status": "completed",
        "task": "lm",
        "measure": MEASURES[predicts],
        "run": str(opened.path),
        "system": config.system,
        "step": opened.step,
        "corpus": given.corpus,
        "split": given.split,
        "context": reading.context + reading.num_special,
        "stride": reading.stride,
        "options": given.option,
        **summarize(table, predicts),
        **calibration.summarize(bins),
        "notes": notes(opened, documents),
        "seconds": time.perf_counter() - begun,
    }
    print(f"{facts['measure']} of {run_folder.name(config)}, step {opened.step}, on {given.corpus}")
    print(f"split {given.split}, context {facts['context']}, stride {facts['stride']}\n")
    print(describe(facts, table, given.show))
    print(calibration.describe(facts, reliability), end="")
    print("".join(f"* {note}\n" for note in facts["notes"]), end="")
    if given.workdir:
        write(given.workdir, facts, table, calibration=reliability.set_index("from"))


if __name__ == "__main__":
    cli.run(main, parser())
