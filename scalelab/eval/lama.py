"""LAMA: facts, asked as cloze sentences (Petroni et al. 2019).

  python -m scalelab.eval.lama --run=RUN --data=DIR --workdir=DIR [--vocabulary=RUN2,RUN3]

DIR holds relations.jsonl, TREx/<relation>.jsonl, Google_RE/<relation>_test.jsonl and
Squad/test.jsonl, or some of them. The object of a fact is masked. A causal model reads the text
before the object; facts with a word after the object are left out.

Possible answers are the words that are one piece of the model's vocabulary. --vocabulary keeps only
the words and facts that this model and the named models share, so that scores are comparable; a
study keeps the words and facts that all its models share. Words are compared without case. Other
right objects of the same question do not compete (filtered ranks, Bordes et al. 2013).

With --answers=relation, the possible answers are the objects of the relation, with any number of
pieces. They rank by the mean log p of their pieces in the sentence. A causal model sees the text
before the piece; a masked model sees the rest of the sentence, with one piece masked at a time.
Every answer needs a sentence; --per_relation asks fewer facts, spread evenly over the file of each
relation.

P@1 and P@10 are the shares of facts with the object ranked first, or in the first ten. MRR is the
mean of 1 / rank. All are in percent, and means over relations; the row `all items` is over facts.
`most frequent` is the P@1 of always answering the most frequent object among all facts of the
relation. Texts of SQuAD with two masks are left out. Intervals are 95%, as in
scalelab/eval/items.py. scalelab/eval/evaluation.py lists the files of --workdir.
"""

import collections
import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from scalelab.eval import items, pairs
from scalelab.eval.evaluation import Asked, Measured
from scalelab.tasks import data_files

if TYPE_CHECKING:
    from scalelab.data.tokenizers import Tokenizer
    from scalelab.eval.sentence_scores import Encoded
    from scalelab.training.pretrained import Pretrained

# Templates of Google-RE (Petroni et al. 2019, table 1); relations.jsonl has the ones of T-REx.
GOOGLE_RE = {
    "place_of_birth": "[X] was born in [Y] .",
    "date_of_birth": "[X] (born [Y]).",
    "place_of_death": "[X] died in [Y] .",
}
MASK = "[MASK]"  # the gap of the object in SQuAD's sentences
LEFT_OUT = (
    "a word stands after the object", "the object has an unknown piece",
    "the object is not a possible answer", "the text is too long",
)  # fmt: skip


class Fact(NamedTuple):
    """A question with its answer."""

    relation: str
    source: str
    before: str  # the text before the object
    answer: str
    after: str


def read(folder: pathlib.Path) -> list[Fact]:
    """Reads all facts of a folder; sentences of SQuAD with several gaps are left out.

    Raises:
      ValueError: there is no fact, a line lacks a key, or a relation has no template.
    """
    path = folder / "relations.jsonl"
    known = _read(path, "relation", "template") if path.exists() else []
    templates = GOOGLE_RE | {row["relation"]: row["template"] for row in known}
    labels = {row["relation"]: f"{row['relation']} {row.get('label', '')}".strip() for row in known}
    found = []
    for path in sorted([*folder.glob("TREx/*.jsonl"), *folder.glob("Google_RE/*.jsonl")]):
        name = path.stem.removesuffix("_test")
        if name not in templates:
            raise ValueError(f"{path}: relations.jsonl has no template for {name!r}")
        before, _, after = templates[name].partition("[Y]")
        for row in _read(path, "sub_label", "obj_label"):
            text, rest = (part.replace("[X]", row["sub_label"]) for part in (before, after))
            relation, source = labels.get(name, name), path.parent.name
            found.append(Fact(relation, source, text, row["obj_label"], rest))
    path = folder / "Squad/test.jsonl"
    for number, row in data_files.read_objects(path, ("obj_label",)) if path.exists() else ():
        with data_files.place(path, number, "a list of texts in 'masked_sentences'"):
            text, *rest = row["masked_sentences"][0].split(MASK)
            if len(rest) == 1:
                found.append(Fact("Squad", "Squad", text, row["obj_label"], rest[0]))
    if not found:
        raise ValueError(f"{folder}: expected TREx/, Google_RE/ or Squad/ of LAMA in it")
    return found


def _read(path: pathlib.Path, *texts: str) -> list[dict[str, Any]]:
    """Reads the objects of a JSON-lines file, each with a text under the keys `texts`."""
    return [row for _, row in data_files.read_objects(path, texts)]


def list_words(tokenizer: "Tokenizer") -> dict[str, list[int]]:
    """Returns the words that are one piece after a space: casefolded text -> piece ids."""
    texts = [tokenizer.decode([k]).strip() for k in range(tokenizer.vocab_size)]
    before, found = tokenizer.encode("a").tolist(), {}
    for k, ids in enumerate(tokenizer.encode_batch([f"a {text}" for text in texts])):
        if texts[k] and ids.tolist() == [*before, k]:
            found.setdefault(texts[k].casefold(), []).append(k)
    return found


def encode(
    opened: "Pretrained", facts: Sequence[Fact], answers: str | None = None
) -> "tuple[Encoded, np.ndarray]":
    """Encodes facts, with the object as span, and marks facts that do not suit the model.

    Args:
      opened: the model.
      facts: the facts.
      answers: "relation": the objects of the relation are ranked; None: words of one piece.

    Returns:
      The texts; and bool [num_facts, 4], True for the reasons of LEFT_OUT that hold for `answers`.
    """
    from scalelab.eval import lm, sentence_scores

    reading = lm.make_reading(opened, None, None)
    texts = [own.before + own.answer + own.after for own in facts]
    spans = [((len(own.before), len(own.before + own.answer)),) for own in facts]
    made = sentence_scores.encode(opened.tokenizer, texts, spans)
    is_word = np.isin(
        made.tokens, [k for same in list_words(opened.tokenizer).values() for k in same]
    )
    pieces, words = made.add_up(np.ones(len(made.tokens))), made.add_up(is_word + 0.0)
    unknown = made.add_up(made.tokens == opened.tokenizer.special_ids.get("unk", -1))
    many = answers is not None
    # Another object may have more pieces; the longest object in bytes bounds their number.
    room = max(len(own.answer.encode()) for own in facts) if many else 0
    flaws = [
        [reading.mask_id is None and any(map(str.isalnum, own.after)) for own in facts],
        unknown > 0,
        pieces == 0 if many else (pieces != 1) | (words != 1),
        made.lengths + room > reading.context,
    ]
    return made, np.stack(flaws, axis=1)


def choose(
    nets: "Sequence[Pretrained]", facts: Sequence[Fact], answers: str | None = None
) -> tuple[list[Fact], list[str]]:
    """Returns the facts that suit all models, and notes on the facts left out.

    Args:
      nets: the models.
      facts: the facts.
      answers: as in `encode`.

    Raises:
      ValueError: no fact is left, or a tokenizer has unknown pieces in most objects.
    """
    made = [encode(net, facts, answers)[1] for net in nets]
    for net, own in zip(nets, made, strict=True):
        items.check_known(net.path, own[:, 1], [fact.answer for fact in facts])
    flaws = np.any(made, axis=0)
    first = np.where(flaws.any(axis=1), flaws.argmax(axis=1), -1)  # the first reason counts
    counts = [(why, int((first == k).sum())) for k, why in enumerate(LEFT_OUT)]
    notes = [f"{num:,} of {len(facts):,} facts left out: {why}" for why, num in counts if num]
    if (first >= 0).all():
        raise ValueError(f"{nets[0].path} can be asked none of the facts: {'; '.join(notes)}")
    return [own for own, reason in zip(facts, first, strict=True) if reason < 0], notes


def rank(
    opened: "Pretrained", facts: Sequence[Fact], among: np.ndarray, asked: Asked
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks the objects of facts among the vocabulary's pieces in `among`.

    Args:
      opened: the run.
      facts: questions with an object of one piece.
      among: [V] bool, the possible answers.
      asked: the request.

    Returns:
      [num_facts] each: the object's piece, and its rank: the number of other pieces with at least
      its probability, without other right objects of the same question.
    """
    from scalelab.eval import lm, sentence_scores, token_scores

    made, _ = encode(opened, facts)
    reading = lm.make_reading(opened, None, None)
    judge = functools.partial(token_scores.guesses, among=among)
    found = sentence_scores.score(
        opened, made, choose_rule(opened), asked, reading=reading, judge=judge
    )[made.inside]
    questions = ["\t".join((own.relation, own.before, own.after)) for own in facts]
    columns = {"piece": made.tokens[made.inside], "nats": found[:, 0], "rank": found[:, 2]}
    frame = pd.DataFrame(columns, index=pd.Index(questions, name="question")).reset_index()
    for _, own in frame[frame.duplicated("question", keep=False)].groupby("question"):
        once = own.drop_duplicates("piece")
        ahead = np.less_equal.outer(once["nats"].to_numpy(), own["nats"].to_numpy())
        other = np.not_equal.outer(once["piece"].to_numpy(), own["piece"].to_numpy())
        frame.loc[own.index, "rank"] -= (ahead & other).sum(axis=0)
    return frame["piece"].to_numpy(), frame["rank"].to_numpy(int)


def rank_objects(
    opened: "Pretrained", facts: Sequence[Fact], objects: Mapping[str, Sequence[str]], asked: Asked
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks the objects of facts among the `objects` of their relation: by mean log p of pieces.

    Args:
      opened: the model.
      facts: the facts.
      objects: relation -> its objects.
      asked: batch sizes and devices.

    Returns:
      [num_facts] each: the object's index in `objects`, and its rank as in `rank`.
    """
    asked_items, right = [], collections.defaultdict(set)
    for own in facts:
        known, start = objects[own.relation], len(own.before)
        place = known.index(own.answer)
        texts = tuple(own.before + text + own.after for text in known)
        spans = tuple(((start, start + len(text)),) for text in known)
        asked_items.append(items.Item((own.relation,), texts, place, spans))
        right[own._replace(answer="")].add(place)
    sums, counts = pairs.score(opened, asked_items, choose_rule(opened), asked)
    scores = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    places = np.array([item.right for item in asked_items])
    ahead = scores >= np.take_along_axis(scores, places[:, None], axis=1)
    for own, row in zip(facts, ahead, strict=True):
        row[list(right[own._replace(answer="")])] = False
    return places, ahead.sum(axis=1)


def choose_rule(opened: "Pretrained") -> str:
    """Returns the rule that scores the pieces of an object."""
    return "log_likelihood" if opened.predicts == "next" else "pll"


def spread(facts: Sequence[Fact], most: int) -> list[Fact]:
    """Keeps some facts of each relation, equally spaced, because some files are sorted.

    Args:
      facts: the facts.
      most: facts of a relation to keep.
    """
    totals, found = collections.Counter(own.relation for own in facts), []
    seen = collections.defaultdict(itertools.count)
    for own in facts:
        place, total = next(seen[own.relation]), max(totals[own.relation], most)
        if place * most // total < (place + 1) * most // total:
            found.append(own)
    return found


def tabulate(facts: Sequence[Fact], usual: np.ndarray, ranks: np.ndarray) -> pd.DataFrame:
    """Makes the rows of the report: relations, sources, and the mean over relations.

    Args:
      facts: the facts.
      usual: [num_facts], whether the object is the most frequent one of the relation.
      ranks: [num_facts], from `rank`.
    """
    groups = pd.DataFrame([(own.relation, own.source) for own in facts])
    columns = {"P@1": ranks == 0, "P@10": ranks < 10, "MRR": 1 / (1 + ranks)}
    values = pd.DataFrame(columns).assign(most_frequent=usual)
    return items.group_means(list(groups.itertuples(index=False, name=None)), values)


def measure(opened: "Pretrained", facts: Sequence[Fact], asked: Asked) -> Measured:
    """Measures a model on the facts.

    Raises:
      ValueError: a run of --vocabulary cannot be read, a wrong option, or as in `choose`.
    """
    from scalelab.training import pretrained

    others, answers, most = (asked.options[name] for name in OPTIONS)
    if answers not in (None, "relation"):
        raise ValueError(f"--answers={answers}: expected relation")
    named = map(pretrained.load, filter(None, (others or "").split(",")))
    nets = [opened, *asked.peers, *named]
    kept, notes = choose(nets, facts, answers)
    objects = collections.defaultdict(collections.Counter)  # relation -> its objects, in order
    for own in kept:
        objects[own.relation][own.answer] += 1
    usual = {relation: own.most_common(1)[0][0] for relation, own in objects.items()}
    kept = spread(kept, most) if most else kept
    rule = choose_rule(opened)
    if answers is None:
        words = [list_words(net.tokenizer) for net in nets]
        common = set.intersection(*map(set, words))  # the words that all models have
        among = np.zeros(opened.config.tokenizer.vocab_size, bool)
        among[[k for text in common for k in words[0][text]]] = True
        _, ranks = rank(opened, kept, among, asked)
        shown = f"{len(common):,} possible answers"
        shown += f", shared by {len(nets)} models" * bool(nets[1:])
    else:
        known = {relation: list(names) for relation, names in objects.items()}
        _, ranks = rank_objects(opened, kept, known, asked)
        sizes, rule = list(map(len, known.values())), f"{rule}, objects of the relation"
        shown = f"{min(sizes):,} to {max(sizes):,} possible answers: objects of the relation"
    table = tabulate(kept, np.array([own.answer == usual[own.relation] for own in kept]), ranks)
    return Measured(
        texts=[[own.before + MASK + own.after for own in kept], [own.answer for own in kept]],
        recipe=rule,
        table=table,
        printed=items.describe(table),
        notes=(shown, *notes),
        **items.hits(ranks == 0, ("miss", "hit")),
    )


OPTIONS = {
    "vocabulary": (None, "RUN2,RUN3: use only words and facts that these models share too"),
    "answers": (None, "relation: rank the objects of the relation; default: words of one piece"),
    "per_relation": (0, "ask only N facts of each relation; default: all"),
}


if __name__ == "__main__":
    from scalelab.eval import suites

    suites.run("lama")
