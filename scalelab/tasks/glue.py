"""GLUE's nine tasks (Wang et al. 2019, arXiv:1804.07461), and two self-supervised tasks."""

from typing import Any

from scalelab.tasks.facts import Score, Task, TaskSplit
from scalelab.tasks.files import Columns

BINARY = ("0", "1")
NLI = ("entailment", "not_entailment")


def _glue(
    name: str,
    title: str,
    relation: str,
    columns: Columns,
    sizes: tuple[int, int, int],
    labels: tuple[str, ...] | None,
    *,
    metrics: tuple[str, ...] = ("accuracy",),
    broken_lines: bool = False,
    **more: Any,
) -> Task:
    """Makes a task; `sizes` are the numbers of rows of train, dev and test."""
    paths = {split: (f"{title}/{split}.tsv",) for split in ("train", "dev", "test")}
    train = TaskSplit("train", paths["train"], sizes[0], f"{name}/train", broken_lines=broken_lines)
    dev = TaskSplit("dev", paths["dev"], sizes[1], f"{name}/validation", broken_lines=broken_lines)
    test = TaskSplit("test", paths["test"], sizes[2], f"{name}/test", f"{title}.tsv")
    return Task(
        name=name, title=title, relation=relation, columns=columns, labels=labels, metrics=metrics,
        train=train, dev_splits=(dev,), test_splits=(test,), **more,
    )  # fmt: skip


GLUE = (  # order of the paper's table 1
    _glue(
        "cola", "CoLA", "single", Columns((3,), 1, num_fields=4), (8551, 1043, 1063), BINARY,
        metrics=("matthews",), classes=("unacceptable", "acceptable"),
        test_columns=Columns(("sentence",)), tfds_texts=("sentence",), about="""\
CoLA, the Corpus of Linguistic Acceptability (Warstadt et al. 2019, arXiv:1805.12471).

Is a sentence, taken from the literature on linguistics, acceptable (1) or not (0)? Training and dev
files have no header; their columns are source, label, the author's own mark, sentence.
""",
    ),
    _glue(
        "sst2", "SST-2", "single", Columns(("sentence",), "label"), (67349, 872, 1821), BINARY,
        classes=("negative", "positive"), about="""\
SST-2, the Stanford Sentiment Treebank in two classes (Socher et al. 2013, EMNLP).

Is a phrase of a film review positive (1) or negative (0)? Training rows are phrases of the parsed
sentences, dev and test rows whole sentences.
""",
    ),
    _glue(
        "mrpc", "MRPC", "similarity", Columns(("#1 String", "#2 String"), "Quality"),
        (3668, 408, 1725), BINARY, metrics=("accuracy", "f1"),
        classes=("not_equivalent", "equivalent"), tfds_texts=("sentence1", "sentence2"),
        named_scores={"mrpc": Score("MRPC", "dev", "f1"),
                      "mrpc_acc": Score("MRPC (accuracy)", "dev", "accuracy")}, about="""\
MRPC, the Microsoft Research Paraphrase Corpus (Dolan and Brockett 2005, IWP).

Do two sentences from news mean the same (1) or not (0)?
""",
    ),
    _glue(
        "stsb", "STS-B", "similarity", Columns(("sentence1", "sentence2"), "score"),
        (5749, 1500, 1379), None, metrics=("pearson", "spearman"), score_range=(0.0, 5.0),
        about="""\
STS-B, the Semantic Textual Similarity Benchmark (Cer et al. 2017, arXiv:1708.00055).

How similar in meaning are two sentences, from 0 (nothing in common) to 5 (the same)? A regression.
""",
    ),
    _glue(
        "qqp", "QQP", "similarity", Columns(("question1", "question2"), "is_duplicate"),
        (363846, 40430, 390965), BINARY, metrics=("accuracy", "f1"), broken_lines=True,
        classes=("not_duplicate", "duplicate"),
        named_scores={"qqp": Score("QQP", "dev", "accuracy"),
                      "qqp_f1": Score("QQP (F1)", "dev", "f1")}, about="""\
QQP, the Quora Question Pairs (Iyer, Dandekar and Csernai 2017, as split by GLUE).

Do two questions ask the same (1) or not (0)? Some questions of the official files have a line break
in them; `scalelab.tasks.files.read` handles these.
""",
    ),
    Task(
        name="mnli", title="MNLI", relation="entailment",
        columns=Columns(("sentence1", "sentence2"), "gold_label"), metrics=("accuracy",),
        labels=("entailment", "neutral", "contradiction"), tfds_texts=("premise", "hypothesis"),
        train=TaskSplit("train", ("MNLI/train.tsv",), 392702, "mnli/train"),
        dev_splits=tuple(
            TaskSplit(part, (f"MNLI/dev_{part}.tsv",), count, f"mnli/validation_{part}")
            for part, count in (("matched", 9815), ("mismatched", 9832))
        ),
        test_splits=(
            *(TaskSplit(part, (f"MNLI/{part}.tsv",), count, f"mnli/{part}", file)
              for part, count, file in (("test_matched", 9796, "MNLI-m.tsv"),
                                        ("test_mismatched", 9847, "MNLI-mm.tsv"))),
            TaskSplit("AX", ("AX/AX.tsv", "diagnostic/diagnostic.tsv"), 1104, "ax/test", "AX.tsv"),
        ),
        named_scores={"mnli_m": Score("MNLI-m", "matched", "accuracy"),
                      "mnli_mm": Score("MNLI-mm", "mismatched", "accuracy")}, about="""\
MNLI, Multi-Genre Natural Language Inference (Williams et al. 2018, arXiv:1704.05426).

Does a premise entail a hypothesis, contradict it, or neither? Two dev and two test sets: from the
genres of the training set (matched) and from others (mismatched). A dev file has each annotator's
label too; scores use `gold_label`.

AX is not a separate task: GLUE's diagnostic set (Wang et al. 2019, arXiv:1804.07461, section 4) has
these labels and no training set. The MNLI model predicts it for the leaderboard.
""",
    ),
    _glue(
        "qnli", "QNLI", "entailment", Columns(("question", "sentence"), "label"),
        (104743, 5463, 5463), NLI, about="""\
QNLI, inference made of SQuAD's questions (Rajpurkar et al. 2016, as turned into pairs by GLUE).

Does a sentence hold the answer to a question? The sets are those of GLUE's second release.
""",
    ),
    _glue(
        "rte", "RTE", "entailment", Columns(("sentence1", "sentence2"), "label"),
        (2490, 277, 3000), NLI, about="""\
RTE, Recognizing Textual Entailment 1, 2, 3 and 5, put together by GLUE.

Does a text entail a hypothesis? (Dagan et al. 2006, Bar-Haim et al. 2006, Giampiccolo et al. 2007,
Bentivogli et al. 2009; neutral and contradiction are one class.)
""",
    ),
    _glue(
        "wnli", "WNLI", "entailment", Columns(("sentence1", "sentence2"), "label"),
        (635, 71, 146), BINARY, classes=("not_entailment", "entailment"), about="""\
WNLI, inference made of the Winograd Schema Challenge (Levesque et al. 2012, KR).

Does a sentence entail (1) the same sentence with its pronoun replaced, or not (0)? The dev set
shares sentences with the training set under opposite labels (question 12 of GLUE's own list), so a
net that learns the training set scores below chance.
""",
    ),
)  # fmt: skip
LARGE_FIRST = tuple(sorted(GLUE, key=lambda task: -(task.train.count or 0)))
FIVE_LARGEST = LARGE_FIRST[:5]
# GLUE-Large is the mean of three tasks; the protocol does not name QQP's metric in this mean.
MEANS = {
    "large": ("GLUE-Large", ("mnli_m", "qqp", "qnli")),
    "large_f1": ("GLUE-Large (QQP F1)", ("mnli_m", "qqp_f1", "qnli")),
}
ABOUT_MEANS = (
    "GLUE-Large is the mean of MNLI-m, QQP (by accuracy, or by F1 where a column says so) and QNLI."
)


def _self_supervised(
    name: str, title: str, relation: str, columns: Columns, labels: tuple[str, str], question: str,
    baseline: str,
) -> Task:  # fmt: skip
    """Makes a task; `baseline` describes the score of counting words."""
    about = f"""\
A self-supervised task: {question}

Not a benchmark: `python -m scalelab.tasks.self_supervised` makes it from any corpus, and the
labels follow from how its rows are made. {baseline}
"""
    return Task(
        name=name, title=title, about=about, relation=relation, metrics=("accuracy",),
        columns=columns, labels=labels, train=TaskSplit("train", (f"{title}/train.tsv",)),
        dev_splits=(TaskSplit("dev", (f"{title}/dev.tsv",)),),
    )  # fmt: skip


SELF_SUPERVISED = (
    _self_supervised(
        "same_document", "SameDocument", "similarity",
        Columns(("passage1", "passage2"), "documents"), ("different", "same"),
        "are two passages from the same document, or from different ones?",
        "Guessing gives half of the answers right;\ncounting the words that two passages share"
        " gives more.",
    ),
    _self_supervised(
        "swapped_words", "SwappedWords", "single", Columns(("sentence",), "word_order"),
        ("original", "swapped"),
        "is a sentence in its original order, or were two words exchanged?",
        "Every sentence occurs in both versions, so\nthat a bag of words gives half of the answers"
        " right.",
    ),
)  # fmt: skip
