"""Named entities: English PAN-X (Pan et al. 2017, ACL; splits of Rahimi et al. 2019, ACL).

The tags, IOB2, were made from links in Wikipedia, not by annotators. The main score is F1 of whole
entities, as conlleval computes it, on the official dev and test sets.
"""

from scalelab.tasks import tagging
from scalelab.tasks.files import Columns
from scalelab.tasks.task import Split, Task

TASK = Task(
    name="ner",
    title="NER",
    relation="single",
    metrics=("entity_f1", "word_accuracy"),
    labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"),
    columns=Columns(("words",)),
    train=Split("train", ("panx/train-en.tsv",), 20000),
    dev_splits=(
        Split("dev", ("panx/dev-en.tsv",), 10000),
        Split("test", ("panx/test-en.tsv",), 10000),
    ),
    kind="tags",
    read=tagging.read_columns,
)


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
