"""Every reader of data files, with a small sound folder for it."""

import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab import predict
from scalelab.data.corpora import open_corpus
from scalelab.eval import babylm, lama, lambada, prompts, reading_times, suites, wordsim
from scalelab.tasks import files, treebank
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Labels
from scalelab.tasks.task import TASKS, load

Folder = pathlib.Path


class Reader(NamedTuple):
    """A reader and the files that it reads."""

    files: Mapping[str, str]  # path below the folder -> content
    read: Callable[[Folder], Any]

    def write(self, folder: Folder) -> None:
        """Writes the sound files."""
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content.encode())


def table(*rows: Sequence[object], delimiter: str = "\t") -> str:
    """Joins rows of fields that need no quoting."""
    return "".join(delimiter.join(map(str, row)) + "\n" for row in rows)


def objects(*rows: object) -> str:
    """Writes a JSON value a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def task(name: str, path: str, content: str, **others: str) -> Reader:
    """Makes the reader of one file of a task."""
    own = TASKS[name]
    assert own.read is not None
    read = own.read
    return Reader({path: content, **others}, lambda f: read(f / path, "dev", own.labels or ()))


def suite(name: str, **contents: str) -> Reader:
    """Makes the reader of a suite; `contents` are by path."""
    return Reader(contents, suites.SUITES[name].read)


PAIR = Columns(("a", "b"), "label")
LINES = table("a b label".split(), ("A dog.", 'Say "it".', 1), ("No.", "x", 0))
WORDS = "".join(
    "\t".join([str(k), word, "_", tag, "_", "_", str(k - 1), "dep", "_", "_"]) + "\n"
    for k, (word, tag) in enumerate([("I", "PRON"), ("do", "AUX")], 1)
)  # fmt: skip
ARTICLES = [
    {"title": f"T{k}", "paragraphs": [{"context": f"It is {k} .", "qas": [{
        "id": f"q{k}", "question": "What ?", "answers": [{"text": str(k), "answer_start": 6}],
    }]}]} for k in range(6)
]  # fmt: skip
SWAG = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label")
STORY = "\t".join(["id", "x", "A story.", *["one: Who?", "a", "b", "c", "d"] * 4]) + "\n"
BLIMP = {"sentence_good": "A.", "sentence_bad": "B.", "UID": "u", "linguistics_term": "t"}
GREEN = table(
    ("constr_id", "sent_id", "class", "form", "len_prefix", "sent"),
    (1, 7, "correct", "run", 2, '"The "" cats"'), (1, 7, "wrong", "runs", 2, "The cats"),
)  # fmt: skip
GYM = {
    "predictions": [{"formula": "[(1;%a%)<(1;%b%)] & [(*;%a%) < (*;%b%)]"}],
    "items": [{"conditions": [
        {"condition_name": k, "regions": [{"region_number": 1, "content": text}]}
        for k, text in (("a", "The dog"), ("b", "The dogs"))
    ]}],
}  # fmt: skip
COPA = {"premise": "It rained.", "choice1": "I ran.", "choice2": "We ran.", "question": "effect",
        "label": 0}  # fmt: skip
TARGET = {"span1_index": 0, "span1_text": "Al", "span2_index": 4, "span2_text": "his"}
WSC = [{"text": "Al saw Bo and his dog.", "label": name == "Bo", "target": TARGET | {
    "span1_text": name, "span1_index": at}} for name, at in (("Al", 0), ("Bo", 2))]  # fmt: skip
NURSES = [(f"nurse.guest.0.{sex}.txt", f"The nurse said {word} ran.")
          for sex, word in (("male", "he"), ("female", "she"), ("neutral", "they"))]  # fmt: skip
TIMES = table(
    reading_times.COLUMNS,
    [*["a"] * len(reading_times.TEXTS), *range(len(reading_times.COLUMNS) - 4)], delimiter=",",
)  # fmt: skip
ENTITY = {"input_prefix": "The box has ", "options": ["a hat.", "a dog."], "numops": 1}
WUG = {"sentences": "a wug\twugs", "ratio": 0.5}
SPANS = {"text": "A dog sees.", "spans": [[2, 5, "phrase"]]}
TURNS = {"turns": [["A", "Hello."], ["B", "Yes."]]}

READERS: dict[str, Reader] = {
    "glue": Reader({"dev.tsv": LINES},
                   lambda f: files.read(f / "dev.tsv", PAIR, Labels(("0", "1")))),
    "bare": Reader({"dev.tsv": table("xxay", "yyby")},
                   lambda f: files.read(f / "dev.tsv", Columns((3,), 2, 4), Labels(("a", "b")))),
    "scores": Reader({"dev.tsv": LINES}, lambda f: files.read(f / "dev.tsv", PAIR, Labels())),
    "own": Reader({"dev.tsv": LINES}, lambda f: [*files.read_labels(f / "dev.tsv", PAIR)]),
    "mnli": Reader(
        {f"mnli.{part}.jsonl": objects({"premise": "A.", "hypothesis": "B.", "label": 1, "idx": 0})
         for part in ("train", "valid")}, functools.partial(load, TASKS["mnli"]), ),
    "boolq": task("superglue_boolq", "BoolQ/val.jsonl",
                  objects({"passage": "A.", "question": "is it", "label": True})),
    "cb": task("superglue_cb", "CB/val.jsonl",
               objects({"premise": "A.", "hypothesis": "B.", "label": "neutral"})),
    "copa task": task("superglue_copa", "COPA/val.jsonl", objects(COPA)),
    "multirc": task("superglue_multirc", "MultiRC/val.jsonl", objects({"passage": {
        "text": "A dog.", "questions": [{"question": "Who?", "answers": [
            {"text": "a dog", "label": 1}]}]}})),
    "wic": task("superglue_wic", "WiC/val.jsonl", objects({
        "sentence1": "A bank.", "sentence2": "The bank.", "start1": 2, "end1": 6, "start2": 4,
        "end2": 8, "label": True})),
    "wsc task": task("superglue_wsc", "WSC/val.jsonl", objects(*WSC)),
    "babylm boolq": task("superglue_boolq", "boolq.valid.jsonl",
                         objects({"passage": "A.", "question": "is it", "label": 1})),
    "babylm multirc": task("superglue_multirc", "multirc.valid.jsonl", objects(
        {"paragraph": "A dog.", "question": "Who?", "answer": "a dog", "label": 0})),
    "babylm wsc": task("superglue_wsc", "wsc.valid.jsonl", objects(
        {"text": "She saw it.", "span1_text": "She", "span2_text": "it", "label": 0})),
    "squad": task("squad", "squad/dev-v1.1.json", json.dumps({"data": ARTICLES})),
    "swag": task("swag", "swag/val.csv", table(SWAG, ('"He, up."', *"abcde", 3), delimiter=",")),
    "mctest": task("mctest", "mc160.dev.tsv", STORY, **{"mc160.dev.ans": "A\tB\tC\tD\n"}),
    "multi30k": task("multi30k_de", "x.en", "A dog.\n", **{"x.de": "Ein Hund.\n"}),
    "cipher": task("cipher", "x.jsonl", objects({"source": "a dog", "target": "u zeg"})),
    "dialogsum": task("dialogsum", "x.jsonl", objects({"dialogue": "Hi", "summary": "They."})),
    "scitldr": task("scitldr", "x.jsonl", objects({"source": ["A."], "target": ["B"]})),
    "e2e": task("e2e", "x.csv", table(("mr", "ref"), ("name[A]", "A is here."), delimiter=",")),
    "webquestions": task("webquestions", "x.json", json.dumps([{"qText": "a?", "answers": ["B"]}])),
    "ner": task("ner", "panx/dev-en.tsv", table(("Al", "B-PER"), ("ran", "O"))),
    "pos": task("pos", "x.conllu", WORDS),
    "treebank": Reader({"en-ud-dev.conllu": f"# a\n{WORDS}\n{WORDS}"},
                       lambda f: treebank.read(f, "dev")),
    "pairs": Reader({"p.jsonl": objects({"good": "A.", "bad": "B.", "group": "g"})},
                    suites.read_pairs),
    "blimp": suite("blimp", **{"x.jsonl": objects(BLIMP)}),
    "blimp published": Reader({suites.BLIMP_PUBLISHED: objects(
        {"UID": "u", "linguistics_term": "t", "ngram": 0.5, "lstm": 0.6})},
        suites.read_blimp_published),
    "green": suite("agreement", **{suites.GREEN: GREEN}),
    "linzen": suite("agreement", **{f"{suites.LINZEN}.gold": "2\tis\tare\t1\n",
                                    f"{suites.LINZEN}.text": "the town is old .\n"}),
    "marvin": suite("agreement", **{suites.MARVIN: table(
        ("test case", "grammatical", "ungrammatical"), ("a--b", "I am", "I is"))}),
    "syntaxgym": suite("syntaxgym", **{"json/number_x.json": json.dumps(GYM)}),
    "cats": suite("cats", **{
        "commonsense_ability_test/ca.txt": "1\x01Ice burns.\x01Ice melts.\n",
        "Robust_commonsense_test/add.txt": "0\x01a\x01b\x011\x01c [SEP] d\x01e\n"}),
    "copa": suite("copa", **{"val.jsonl": objects(COPA)}),
    "wsc": suite("wsc", **{"val.jsonl": objects(*WSC)}),
    "crows_pairs": suite("crows_pairs", **{suites.CROWS_PAIRS: table(
        ("", "sent_more", "sent_less", "bias_type"), (0, '"Poor, sir."', "Rich.", "age"),
        (1, "Old men.", "Young men.", "age"), delimiter=",")}),
    "winogender": suite("winogender", **{
        "occupations-stats.tsv": table(("occupation", "bls_pct_female"), ("nurse", 90)),
        "all_sentences.tsv": table(("sentid", "sentence"), *NURSES)}),
    "prompts": Reader({
        "SST-2/dev.tsv": table(("sentence", "label"), ("Good.", 1)),
        "agnews/test.csv": '"3","A ""title""","About."\n', "trec/TREC.test": "HUM:ind Who ran ?\n",
        "BoolQ/val.jsonl": objects({"passage": "A.", "question": "is it", "label": True}),
        }, prompts.read),
    "wordsim": Reader({"ws.txt": table(("dog", "cat", 7.5), ("dog", "Rome", 1))}, wordsim.read),
    "lambada": suite("lambada", **{lambada.FILE: objects({"text": "He saw the dog"})}),
    "lambada plain": Reader({"x.txt": "He saw the dog\n"}, lambda f: lambada.read(f / "x.txt")),
    "lama": Reader({
        "relations.jsonl": objects({"relation": "P1", "template": "[X] is [Y] .", "label": "is"}),
        "TREx/P1.jsonl": objects({"sub_label": "Al", "obj_label": "tall"}),
        "Google_RE/place_of_birth_test.jsonl": objects({"sub_label": "Al", "obj_label": "Rome"}),
        "Squad/test.jsonl": objects({"masked_sentences": ["It is [MASK] ."], "obj_label": "x"}),
        }, lama.read),
    "babylm": Reader({
        "blimp_filtered/x.jsonl": objects(BLIMP), "entity_tracking/regular.jsonl": objects(ENTITY),
        "wug_adj_nominalization/x.jsonl": objects(WUG), babylm.READING: TIMES}, babylm.read),
    "babylm rows": Reader({
        "babylm_2025_filtered_rows.json": '{"u": [0]}', "babylm_2025_fast_rows.json": '{"u": [0]}',
        "blimp/x.jsonl": objects(BLIMP), "entity_tracking/regular.jsonl": objects(ENTITY),
        "wug_adj_nominalization/x.jsonl": objects(WUG), babylm.READING: TIMES}, babylm.read),
    **{f"predict {kind}": Reader({f"x.{kind}": content}, lambda f, kind=kind: [
        *predict.read_texts(f / f"x.{kind}", [("a", "b")])[1]]) for kind, content in {
            "tsv": LINES, "csv": LINES.replace('Say "it".', '"Say, ""it""."').replace("\t", ","),
            "jsonl": objects({"a": "A.", "b": "B."}, {"a": "C.", "b": "D."})}.items()},
    "predict bare": Reader({"x.tsv": table("xxay", "yyby")}, lambda f: [
        *predict.read_texts(f / "x.tsv", [("text",), (3,)])[1]]),
    **{f"corpus {kind}": Reader({f"x.{kind}": content}, lambda f, kind=kind: [
        *open_corpus(f"{kind}:{f}/*").labeled()]) for kind, content in {
            "text": "A dog.\nA cat.\n\nMore.\n", "jsonl": objects({"text": "A dog."}, SPANS, TURNS)
            }.items()},
    "corpus spans": Reader({"x.jsonl": objects(SPANS, TURNS)}, lambda f: [
        *(open_corpus(f"jsonl:{f}/*").source.spans or list)()]),
    "corpus wikitext": Reader({"wiki.train.raw": " = A = \n\n A dog . \n"}, lambda f: [
        *open_corpus(f"wikitext:{f}").labeled()]),
}  # fmt: skip
