"""STS-B, the Semantic Textual Similarity Benchmark (Cer et al. 2017, arXiv:1708.00055).

How similar in meaning are two sentences, from 0 (nothing in common) to 5 (the same)? A regression.
"""

from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="stsb",
    title="STS-B",
    relation="similarity",
    metrics=("pearson", "spearman"),
    score_range=(0.0, 5.0),
    columns=Columns(("sentence1", "sentence2"), "score"),
    train=Split("train", ("STS-B/train.tsv",), 5749, "stsb/train"),
    dev_splits=(Split("dev", ("STS-B/dev.tsv",), 1500, "stsb/validation"),),
    test_splits=(Split("test", ("STS-B/test.tsv",), 1379, "stsb/test", "STS-B.tsv"),),
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
