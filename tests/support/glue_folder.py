"""A folder in GLUE's official layout with invented rows, for tests."""

from pathlib import Path

NLI = ("entailment", "not_entailment")
ONE = ("The river froze in March.", "She counted the seeds twice.", 'Two "odd" ones fell.')
TWO = ("Ice covered the water.", "Nobody counted.", "One was odd.")

# The first lines of the official files; {} is where the label column is.
MNLI_TRAIN = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse"
    " sentence2_parse sentence1 sentence2 label1 gold_label"
).split()
MNLI_DEV = [*MNLI_TRAIN[:-2], *(f"label{i}" for i in range(1, 6)), "gold_label"]
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()
QQP = "id qid1 qid2 question1 question2 is_duplicate".split()
MRPC = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
PAIR = ["index", "sentence1", "sentence2", "label"]
QNLI = ["index", "question", "sentence", "label"]

LABELS = {
    "CoLA": ("0", "1", "1"),
    "SST-2": ("1", "0", "1"),
    "MRPC": ("1", "0", "0"),
    "STS-B": ("5.000", "0.000", "2.750"),
    "QQP": ("0", "1", "0"),
    "MNLI": ("neutral", "entailment", "contradiction"),
    "QNLI": (NLI[1], NLI[0], NLI[0]),
    "RTE": (NLI[0], NLI[1], NLI[0]),
    "WNLI": ("0", "1", "1"),
}


def table(header, labels=None, *, named=True, end="\n", mark=""):
    """Rows of ONE and TWO under a header; what is not text or label is filler."""
    first = {"sentence1", "question1", "#1 String", "question"}
    if "question" not in header and "sentence1" not in header:
        first = first | {"sentence"}
    second = {"sentence2", "question2", "#2 String", "sentence"} - first
    last = {"label", "score", "Quality", "is_duplicate", "gold_label"}
    lines = ["\t".join(header)] if named else []
    for i in range(3):
        cells = []
        for name in header:
            label = labels[i] if labels is not None else ""
            texts = {**dict.fromkeys(first, ONE[i]), **dict.fromkeys(second, TWO[i])}
            texts |= dict.fromkeys(last, label) | {"index": str(i), "id": str(i)}
            cells.append(texts.get(name, f"( {name} )"))
        lines.append("\t".join(cells))
    return mark + "\n".join(lines) + end


def write(folder: Path) -> Path:
    """Writes all nine tasks and AX, three rows a file; returns the folder."""
    files = {}
    for title, header in {
        "SST-2": ["sentence", "label"], "MRPC": MRPC, "STS-B": STSB, "QQP": QQP, "QNLI": QNLI,
        "RTE": PAIR, "WNLI": PAIR,
    }.items():  # fmt: skip
        mark = "\ufeff" if title == "MRPC" else ""
        for split in ("train", "dev"):
            files[f"{title}/{split}.tsv"] = table(header, LABELS[title], mark=mark)
        unlabeled = [n for n in header if n not in ("label", "score", "is_duplicate", "Quality")]
        if unlabeled[0] not in ("index", "id"):
            unlabeled = ["index", *unlabeled]
        files[f"{title}/test.tsv"] = table(unlabeled)
    bare = ["source", "label", "mark", "sentence"]
    files["CoLA/train.tsv"] = table(bare, LABELS["CoLA"], named=False)
    files["CoLA/dev.tsv"] = table(bare, LABELS["CoLA"], named=False, end="")
    files["CoLA/test.tsv"] = table(["index", "sentence"])
    files["MNLI/train.tsv"] = table(MNLI_TRAIN, LABELS["MNLI"])
    for kind in ("matched", "mismatched"):
        files[f"MNLI/dev_{kind}.tsv"] = table(MNLI_DEV, LABELS["MNLI"])
        files[f"MNLI/test_{kind}.tsv"] = table(MNLI_TRAIN[:-2])
    files["AX/AX.tsv"] = table(["index", "sentence1", "sentence2"])
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    return folder
