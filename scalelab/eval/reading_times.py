"""Reading times: the variance that surprisal explains beyond length, frequency and position.

Words, times and regressions come from the BabyLM evaluation (de Varda et al. 2023). The score is
(R2 with surprisal - R2 without) / (1 - R2 without), the squared partial correlation of surprisal
and reading time.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from scalelab.data.tokenizers import Tokenizer
    from scalelab.training.pretrained import Pretrained

TEXTS = ("item", "word", "prev_item", "prev_word")
CONTROLS = ("Subtlex_log10", "length", "context_length")
BEFORE = ("prev_length", "prev_surprisal")  # further controls of self-paced reading
EYE = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
SELF_PACED = "self_paced_reading_time"
COLUMNS = (*TEXTS, *CONTROLS, BEFORE[0], *EYE, SELF_PACED, "sent_id")
MASKS = 3  # masks that a masked model sees in place of the word and the text after it
RESAMPLES = 500

Row = tuple[tuple[int, ...], int]  # ids before the piece, the piece


def check(row: Mapping[str, str]) -> None:
    """Raises ValueError if a numeric column of a row has text that is not a number."""
    for name in COLUMNS[len(TEXTS) :]:
        pd.to_numeric(row[name] or "0")


def read(
    opened: "Pretrained",
    words: Sequence[Mapping[str, str]],
    *,
    official: bool,
    tensor_parallel: int = 1,
) -> dict[str, np.ndarray]:
    """Returns the numeric columns, and the surprisal of each word and of the word before it.

    Args:
      opened: the model.
      words: the rows of the file.
      official: as in `surprisals`.
      tensor_parallel: devices that share the model.
    """
    frame = pd.DataFrame(words)
    numbers = frame.drop(columns=list(TEXTS)).apply(pd.to_numeric)
    columns = {str(name): numbers[name].to_numpy(float) for name in numbers}
    # An empty `item` means the context "None". As in the pipeline, an empty or "None" `prev_item`
    # counts as missing.
    now = [*zip(frame["item"].replace("", "None"), frame["word"], strict=True)]
    has_before = ~frame["prev_item"].isin(["", "None"]).to_numpy()
    before = frame.loc[has_before, ["prev_item", "prev_word"]].itertuples(index=False, name=None)
    pairs = [*now, *before]
    found = surprisals(opened, pairs, official=official, tensor_parallel=tensor_parallel)
    columns["surprisal"], columns["prev_surprisal"] = np.full((2, len(now)), np.nan)
    columns["surprisal"][:], columns["prev_surprisal"][has_before] = np.split(found, [len(now)])
    return columns


def surprisals(
    opened: "Pretrained",
    words: Sequence[tuple[str, str]],
    *,
    official: bool,
    tensor_parallel: int = 1,
) -> np.ndarray:
    """Computes surprisals of words after their contexts: [n] nats; NaN if the text is too long.

    Args:
      opened: the run; its model predicts tokens.
      words: pairs of context and word.
      official: True: as in the pipeline, the word is encoded without the blank before it, and its
        pieces are decoded and encoded again; False: the word is encoded in its context.
      tensor_parallel: devices that share the model.
    """
    from scalelab.eval import likelihood, placement, sentence_scores, token_scores
    from scalelab.eval.likelihood import Windows

    asked = [_rows(opened, context, word, official=official) for context, word in words]
    is_masked = opened.predicts == "masked"
    reading = likelihood.make_reading(opened, causal=not is_masked, masked=is_masked)
    num = MASKS if is_masked else 1
    # A row has the ids before the piece, and the piece; a masked model sees masks for the piece.
    most = reading.context - num * is_masked
    rows = [*dict.fromkeys(row for own in asked for row in own if len(row[0]) <= most)]
    tokens = np.array([x for ids, piece in rows for x in (*ids, *[piece] * num)], np.int32)
    stops = np.cumsum([len(ids) + num for ids, _ in rows], dtype=np.int64)
    firsts, starts = stops - num, np.append(0, stops)[:-1]
    windows = Windows(starts, stops if is_masked else firsts, firsts, firsts + 1, stops)
    judged = likelihood.score_rows(
        placement.place(opened, tensor_parallel), tokens, windows, reading,
        sentence_scores.choose_batch_size(reading, None), token_scores.nats, show=False,
    )  # fmt: skip
    nats = dict(zip(rows, judged[firsts].tolist(), strict=True))
    return np.array([sum(nats.get(row, np.nan) for row in own) for own in asked])


def _rows(opened: "Pretrained", context: str, word: str, *, official: bool) -> list[Row]:
    """Returns one row for each piece of a word: the text that the model reads before the piece."""
    tokenizer = opened.tokenizer
    # The pipeline ends a causal model's text with the same token as training.
    tail = tokenizer.frame().end if official and opened.predicts != "masked" else ()
    pieces = (_official_pieces if official else _pieces)(tokenizer, context, word)
    return [((*before, *tail), piece) for before, piece in pieces]


def _pieces(tokenizer: "Tokenizer", context: str, word: str) -> list[tuple[list[int], int]]:
    """Returns (all ids before the piece, piece) for each piece of a word in its context."""
    _, ids, (_, stops, _) = tokenizer.encode_aligned([f"{context} {word}"])
    first, flat = int((stops <= len(context)).sum()), ids.tolist()
    return [(flat[:k], flat[k]) for k in range(first, len(flat))]


def _official_pieces(
    tokenizer: "Tokenizer", context: str, word: str
) -> list[tuple[list[int], int]]:
    """Returns (ids of the text before, piece) for each piece of a word encoded alone."""
    pieces = tokenizer.encode(word).tolist()
    found = [(tokenizer.encode(context).tolist(), pieces[0])]
    for piece, following in itertools.pairwise(pieces):
        context += tokenizer.decode([piece])
        again = tokenizer.encode(tokenizer.decode([following])).tolist()
        found.append((tokenizer.encode(context).tolist(), again[0] if again else following))
    return found


# --- Regressions ----------------


def explained(
    columns: Mapping[str, np.ndarray],
    outcome: str,
    controls: Sequence[str],
    weights: np.ndarray | None = None,
) -> float:
    """Returns the squared partial correlation of an outcome and `surprisal`, given controls.

    Args:
      columns: name -> [n] numbers; rows with NaN in a used column are left out.
      outcome: name of the explained column.
      controls: names of the controls; the products of any two are controls, too.
      weights: [n] multiplicities of the rows; None: 1.
    """
    table = np.stack([columns[name] for name in (outcome, "surprisal", *controls)], axis=1)
    used = np.isfinite(table).all(axis=1)
    table, weights = table[used], np.ones(used.sum()) if weights is None else weights[used]
    x = table[:, 2:]
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12)
    products = [x[:, i] * x[:, j] for i, j in itertools.combinations(range(x.shape[1]), 2)]
    scale = np.sqrt(weights)[:, None]
    design = np.column_stack([np.ones(len(x)), x, *products]) * scale
    both = table[:, :2] * scale
    left = both - design @ np.linalg.lstsq(design, both, rcond=None)[0]
    (a, b), (_, c) = left.T @ left
    return float(b**2 / (a * c)) if a * c > 0 else 0.0


def scores(columns: Mapping[str, Any], weights: np.ndarray | None = None) -> tuple[float, float]:
    """Returns the scores of eye tracking (mean over its four times) and self-paced reading.

    Args:
      columns: name -> [n] numbers, from `read`.
      weights: [n] multiplicities; None: 1 each.
    """
    eye = [explained(columns, outcome, CONTROLS, weights) for outcome in EYE]
    return sum(eye) / len(eye), explained(columns, SELF_PACED, (*CONTROLS, *BEFORE), weights)


def intervals(columns: Mapping[str, Any]) -> np.ndarray:
    """Returns the 95% percentile intervals [2, 2] of both scores, resampling sentences."""
    sentences, index = np.unique(columns["sent_id"], return_inverse=True)
    shares = np.full(len(sentences), 1 / len(sentences))
    draws = np.random.default_rng(0).multinomial(len(sentences), shares, size=RESAMPLES)
    found = np.array([scores(columns, draw[index].astype(float)) for draw in draws])
    return np.percentile(found, [2.5, 97.5], axis=0).T
