"""Minimal pairs: planted accuracies, files of every set, the program, and what it refuses."""

import json
import os
import pathlib

import numpy as np
import pandas as pd
import pytest
import tiny
from scipy import stats
from task_folders import read_seed, write_rows, write_text

from scalelab.eval import compare, items, likelihood, pairs, suites
from scalelab.eval import names as evaluation_names
from scalelab.eval.items import Item
from scalelab.lab.compare import estimates
from scalelab.records import predictions
from scalelab.training import pretrained


def test_a_planted_model_gets_its_planted_accuracy() -> None:
    """Scores from a table of probabilities: 70% of one group right, 20% of another."""
    rng = np.random.default_rng(0)
    asked = [Item((g, "all"), ("a", "b"), int(rng.integers(2))) for g in ["p"] * 50 + ["q"] * 10]
    is_right = np.arange(60) % 10 < np.where(np.arange(60) < 50, 7, 2)
    sums = np.log(rng.uniform(0.1, 0.4, (60, 2)))
    for k, item in enumerate(asked):
        sums[k, item.right if is_right[k] else 1 - item.right] = np.log(0.5)
    made = items.judge(asked, sums, np.ones_like(sums))
    np.testing.assert_array_equal(made.right, is_right)
    table = items.table(asked, made.right, made.by_mean).set_index("group")
    expected = {"p": 0.7, "q": 0.2, "all": 0.45, "mean": 0.45, "all items": 37 / 60}
    assert table["accuracy"].to_dict() == pytest.approx(expected)
    assert (table["chance"] == 0.5).all()
    ends = estimates.wilson([(37 / 60, 60)])  # the score of result.json and of studies
    assert table.loc["all items", ["low", "high"]].tolist() == pytest.approx(ends)


def test_ties_and_constant_answers_are_guesses() -> None:
    asked = [Item(("g",), ("a", "b", "c", "d")[: 2 + k // 48], 0) for k in range(144)]
    sums = np.zeros((144, 4))
    for k, item in enumerate(asked):
        sums[k, len(item.texts) :] = -np.inf
    tied = items.judge(asked, sums, np.ones_like(sums))
    guessed = np.mean([1 / len(item.texts) for item in asked])
    assert tied.right.mean() == pytest.approx(guessed)
    assert (tied.outputs.argmax(axis=1) == 0).all()  # an answer by place says nothing
    formulas = [Item(("g",), ("a", "b"), 0, formula="x0 > x1")] * 4
    for some, rate in ((asked, guessed), (formulas, 0.5)):  # what the model cannot hold
        unheld = items.judge(some, np.full((len(some), sums.shape[1]), np.nan), sums)
        assert unheld.right.mean() == unheld.by_mean.mean() == pytest.approx(rate)


@pytest.mark.parametrize(("name", "right"), [("cats", [True, False]), ("pairs", [False, True])])
def test_commonsense_tests_answer_by_means_and_others_by_sums(
    pretrained_runs, tmp_path, monkeypatch, name, right
) -> None:
    """By hand: sums -6 and -4 of three tokens and one, so means -2 and -4; then the other way."""
    asked = [Item(("g",), ("bada gedu dodo", "bada"), 0), Item(("g",), ("gedu bada", "gedu"), 0)]
    sums, counts = np.array([[-6.0, -4.0], [-5.0, -7.0]]), np.array([[3.0, 1.0], [1.0, 2.0]])
    judged = items.judge(asked, sums, counts)
    assert (judged.right.tolist(), judged.by_mean.tolist()) == ([False, True], [True, False])
    monkeypatch.setattr(pairs, "score", lambda *_, **__: (sums, counts))
    request = pairs.Asked(None, tmp_path, {"rule": None, "per_group": 0})
    opened = pretrained.load(pretrained_runs("gpt2"))
    made = suites.SUITES[name].measure(opened, asked, request)
    assert (made.outputs.argmax(axis=1) == made.gold).tolist() == right
    by_mean = [[-2.0, -4.0], [-5.0, -3.5]]
    expected = by_mean if name == "cats" else sums
    np.testing.assert_allclose(made.outputs, [expected[0], expected[1][::-1]], rtol=1e-6)


def test_intervals_are_wilsons() -> None:
    for right, num in ((0, 8), (3, 10), (999, 1000)):
        expected = stats.binomtest(right, num).proportion_ci(method="wilson")
        assert estimates.wilson([(right / num, num)]) == pytest.approx(
            (expected.low, expected.high)
        )
    low, high = estimates.wilson([(0.0, 5), (0.0, 9), (0.1, 10)])
    assert low == 0.0 < 0.1 / 3 < high
    narrow, wide = (np.ptp(estimates.wilson([(0.5, 100)] * k)) for k in (4, 1))
    assert narrow == pytest.approx(wide / 2)


def test_formulas() -> None:
    values = np.array([1.0, 2.0, 5.0])
    assert items.holds("(x0 < x1) & ((x2 - x1) > (x1 - x0))", values)
    assert not items.holds("(x0 + x1) > x2", values)
    # Orders of independent values: 1 of 4, 5 of 24 linear extensions, an orthant of three normals.
    for formula, chance in (
        ("(x0 < x1) & (x2 < x3)", 1 / 4),
        ("(x0 < x1) & (x2 < x3) & (x0 < x3)", 5 / 24),
        ("(x0 > x1) & (x0 > x2) & ((x0 - x1) > (x2 - x3))", 7 / 24),
    ):
        own = Item(("g",), ("a", "b", "c", "d"), 0, formula=formula)
        assert own.chance == pytest.approx(chance, abs=0.005)
    wrongs = "__import__('os')", "x0 <", "x0 ** x1 < x2", "x0", "x0 < x1 < x2", "(x0 < x1) & x2"
    for wrong in wrongs:
        with pytest.raises(ValueError, match="formula"):
            items.parse_formula(wrong)


def test_agreement(tmp_path) -> None:
    head = "constr_id\tsent_id\tclass\tform\tlen_prefix\tsent\n"
    green = [f'1\t7\t{c}\t{f}\t2\t"The "" cats sleep <eos>"\n'
             for c, f in (("correct", "run"), ("wrong", "runs"))]  # fmt: skip
    write_text(tmp_path / suites.GREEN, head + "".join(green))
    write_text(tmp_path / f"{suites.LINZEN}.gold", "2\tis\tare\t1\n")
    write_text(tmp_path / f"{suites.LINZEN}.text", "the town is old . <eos>\n")
    write_text(
        tmp_path / suites.MARVIN, "test case\tgrammatical\tungrammatical\na--b\tI am\tI is\n"
    )
    found = {item.groups[0]: item.texts for item in suites.read_agreement(tmp_path)}
    assert found == {
        "green: nonce": ('The " run', 'The " runs'),
        "linzen: 1 attractors": ("the town is", "the town are"),
        "marvin: a": ("I am", "I is"),
    }


def test_cats(tmp_path) -> None:
    write_text(
        tmp_path / "commonsense_ability_test/ca.txt", "1\x01Ice burns.\x01Ice melts.\x01No.\n\n"
    )
    write_text(tmp_path / "Robust_commonsense_test/add.txt", "0\x01a\x01b\x011\x01c [SEP] d\x01e\n")
    expected = [
        Item(("ca", "tests"), ("Ice burns.", "Ice melts.", "No."), 1),
        Item(("add", "robust pairs"), ("a", "b"), 0),
        Item(("add", "robust pairs"), ("c d", "e"), 1),
    ]
    assert suites.read_cats(tmp_path) == expected


def test_crows_pairs_score_the_shared_words(tmp_path) -> None:
    row = '0,"Poor men, sir, lie.","Rich old men, sir, lie.",stereo,age\n'
    head = ",sent_more,sent_less,stereo_antistereo,bias_type\n"
    write_text(tmp_path / "data" / suites.CROWS_PAIRS, head + row)
    (item,) = suites.read_crows_pairs(tmp_path)
    assert item.spans is not None
    for text, own in zip(item.texts, item.spans, strict=True):
        assert [text[a:b] for a, b in own or ()] == ["men", ",", "sir", ",", "lie", "."]


def test_winogender(tmp_path) -> None:
    write_text(tmp_path / "occupations-stats.tsv", "occupation\tbls_pct_female\nnurse\t90\n")
    rows = [f"nurse.guest.0.{g}.txt\tThe nurse said {p} ran.\n"
            for g, p in (("male", "he"), ("female", "she"), ("neutral", "they"))]  # fmt: skip
    write_text(tmp_path / "all_sentences.tsv", "sentid\tsentence\n" + "".join(rows))
    texts = "The nurse said he ran.", "The nurse said she ran."
    assert suites.read_winogender(tmp_path) == [Item(("pronoun of the occupation",), texts, 1)]


def test_copa_and_wsc(tmp_path) -> None:
    row = {"premise": "It rained.", "choice1": "I ran.", "choice2": "The sun shone.",
           "question": "effect", "label": 0}  # fmt: skip
    write_rows(tmp_path / "COPA/val.jsonl", row)
    (item,) = suites.read_copa(tmp_path)
    assert item.texts == ("It rained so I ran.", "It rained so the sun shone.")
    assert item.spans is not None and item.spans[0] is not None
    assert item.texts[0][slice(*item.spans[0][0])] == " I ran."
    rows = [{"text": "Al saw Bo and his dog.", "label": label,
             "target": {"span1_text": name, "span2_index": 4}}
            for name, label in (("Al", False), ("Bo", True))]  # fmt: skip
    write_rows(tmp_path / "WSC/val.jsonl", *rows)
    texts = "Al saw Bo and Al's dog.", "Al saw Bo and Bo's dog."
    assert suites.read_wsc(tmp_path) == [Item(("WSC",), texts, 1)]


def test_syntaxgym(tmp_path) -> None:
    """Two conditions of three regions, one of them empty."""

    def regions(*texts: str) -> list[dict]:
        return [{"region_number": k, "content": text} for k, text in enumerate(texts, 1)]

    texts = {"a": ("The", "", "dog", "runs"), "b": ("The", "big", "dogs", "runs")}
    conditions = [{"condition_name": k, "regions": regions(*own)} for k, own in texts.items()]
    formulas = ["[(4;%a%)<(4;%b%)] & [(*;%a%) < (*;%b%)]", "(4;%a%) = (4;%b%)"]
    suite = {
        "predictions": [{"formula": f} for f in formulas],
        "items": [{"conditions": conditions}],
    }
    write_text(tmp_path / "json/number_x.json", json.dumps(suite))
    (item,) = suites.read_syntaxgym(tmp_path)
    assert item.groups == ("number_x", "agreement")
    assert item.formula == "(x0<x1) & (x2 < x3)"
    assert item.spans is not None and item.texts[0] == "The dog runs"
    assert [item.texts[0][a:b].strip() for a, b in item.spans[0] or ()] == ["runs"]
    counts = np.ones((1, 4))
    assert items.judge([item], -np.array([[1.0, 2.0, 3.0, 4.0]]), counts).right.tolist() == [True]
    assert items.judge([item], -np.array([[2.0, 1.0, 3.0, 4.0]]), counts).right.tolist() == [False]


@pytest.mark.realdata
def test_the_published_numbers() -> None:
    """Means of the corrected tables of BLiMP, and SyntaxGym's trivial score of reports."""
    root = pathlib.Path(os.environ.get("SCALELAB_DATA", tiny.ROOT.parent / "shared/data"))
    if not (root / "blimp/published").is_dir():
        pytest.skip(f"{root}/blimp/published is absent")
    published = suites.read_blimp_published(root / "blimp")
    assert published.loc["mean"].tolist() == pytest.approx([0.612, 0.698], abs=0.0005)
    assert {"wh_island", "island_effects"} < {*published.index} and len(published) == 67 + 12 + 2
    chances = [item.chance for item in suites.read_syntaxgym(root / "syntaxgym")]
    assert np.mean(chances) == pytest.approx(evaluation_names.TRIVIAL["syntaxgym"], abs=0.001)


WORDS = "small big old new red long".split()


@pytest.fixture
def paradigms(tmp_path) -> pathlib.Path:
    for name, term in (("one", "x"), ("two", "x"), ("three", "y")):
        rows = [{"sentence_good": f"The {a} dog sees a {b} cat.", "linguistics_term": term,
                 "sentence_bad": f"The {a} dog see a {b} cat.", "UID": name}
                for a in WORDS for b in WORDS[:2]]  # fmt: skip
        write_rows(tmp_path / f"blimp/data/{name}.jsonl", *rows)
    return tmp_path / "blimp"


def test_from_files_to_paired_differences(pretrained_runs, paradigms, tmp_path, start) -> None:
    accuracies = ("one", "x", 0.2), ("two", "x", 0.4), ("three", "y", 0.9), ("overall", "z", 0.0)
    published = [{"UID": name, "linguistics_term": term, "ngram": x, "lstm": 0.5}
                 for name, term, x in accuracies]  # fmt: skip
    write_rows(paradigms / suites.BLIMP_PUBLISHED, *published)
    for system in ("gpt2", "bert"):
        given = f"--run={pretrained_runs(system)}", f"--data={paradigms}"
        code, out, errors = start("blimp", *given, f"--workdir={tmp_path / system}")
        assert code == 0, errors
        again = start("blimp", *given, f"--workdir={tmp_path / system}")
        assert again[0] == 0 and "finished before" in again[1]
        assert out[out.index("group") : out.index("wrote")] in again[1]
    folder = tmp_path / "gpt2/seed0"
    beside = pd.read_table(folder / "groups.tsv", index_col="group")["ngram"]
    expected = {"three": 0.9, "one": 0.2, "two": 0.4, "x": 0.3, "y": 0.9}
    assert beside.to_dict() == pytest.approx(expected | {"mean": 0.5, "all items": 0.5})
    result, made = read_seed(tmp_path / "gpt2")
    assert (result.task, result.recipe) == ("blimp", "log_likelihood")
    assert result.eval["dev"]["accuracy"] == (made.gold == made.predicted).mean()
    frame, _ = compare.compare(
        compare.open_system(str(tmp_path / "gpt2")), compare.open_system(str(tmp_path / "bert")),
        allow_recipe=True,
    )  # fmt: skip
    assert list(frame["task"]) == ["blimp"] and frame["seeds_a"][0] == 1
    assert frame["a"][0] == result.eval["dev"]["accuracy"]


@pytest.mark.parametrize("name", ["pairs", "lambada"])
def test_an_interrupted_evaluation_goes_on(
    pretrained_runs, tmp_path, monkeypatch, start, stop_at, name
) -> None:
    """It ends with the same bytes, and the model judges no batch twice."""
    monkeypatch.setattr(likelihood, "SAVE_SECS", 0.0)
    file = tmp_path / "own.jsonl"
    texts = [f"{'bada ' * k}gedu {word}" for k in range(2, 9) for word in ("dodo", "unbada")]
    write_rows(file, *({"text": text, "good": text, "bad": f"a {text}"} for text in texts))
    given = f"--run={pretrained_runs('bert')}", f"--data={file}", "--batch_tokens=64"
    counts = []
    for kind, last in (("whole", 10**6), ("cut", 3), ("cut", 10**6)):
        calls = stop_at(likelihood, "fill", last)
        code, _, errors = start(name, *given, f"--workdir={tmp_path / kind}")
        assert (code == 0) == (last > 3) and "Traceback" not in errors
        counts.append(len(calls))
    assert counts[0] > 3 and counts[1:] == [3, counts[0] - 2]
    for made in ("predictions.tsv", "groups.tsv"):
        whole, cut = (tmp_path / kind / "seed0" / made for kind in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes()


def test_bad_input(pretrained_runs, paradigms, tmp_path, start, refused) -> None:
    run, work = f"--run={pretrained_runs('gpt2')}", f"--workdir={tmp_path / 'work'}"
    file = write_rows(tmp_path / "own.jsonl", {"good": "a b", "bad": "b a"}, {"good": "a"})
    texts = ("a b " * 99, "b b"), ("a b", "b"), ("a b", "b b")  # too long, nothing to score, fine
    long = write_rows(tmp_path / "long.jsonl", *({"good": a, "bad": b} for a, b in texts))
    empty = write_rows(
        tmp_path / "empty.jsonl", {"good": "a b", "bad": "b"}, {"good": "a b", "bad": 3}
    )
    snow = [{"good": f"\u2603 {x}", "bad": f"\u2604 {x}"} for x in ("a", "b")]
    unknown = write_rows(tmp_path / "unknown.jsonl", {"good": "a b", "bad": "b a"}, *snow)
    twice = [{"good": "a b", "bad": "a b"}] * 2
    equal = write_rows(tmp_path / "equal.jsonl", *twice)
    some = {"good": "a b", "bad": "b a"}, {"good": "b", "bad": "a"}
    mixed = write_rows(tmp_path / "mixed.jsonl", *twice, *some, snow[0])
    cases = [
        ("pairs", [run, work, f"--data={file}"], "line 2"),
        ("pairs", [run, work, f"--data={empty}"], "line 2: expected a text in 'bad', found 3"),
        ("pairs", [run, work, f"--data={long}", "--per_group=-3"], "0 or more"),
        (
            "pairs",
            [f"--run={pretrained_runs('bert')}", work, f"--data={unknown}"],
            "2 of the 3 answers",
        ),
        (
            "pairs",
            [run, work, f"--data={equal}"],
            "2 of the 2 items have equal texts",
        ),
        ("blimp", [run, work, f"--data={tmp_path / 'none'}"], "data/*.jsonl"),
        ("blimp", [run, work, f"--data={paradigms}", "--rule=pll"], "log_likelihood"),
        ("blimp", [f"--run={tmp_path}", work, f"--data={paradigms}"], "config.json"),
    ]
    for program, arguments, expected in cases:
        assert expected in refused(program, *arguments)
    # Equal texts are not texts that the tokenizer cannot write.
    bert = f"--run={pretrained_runs('bert')}", f"--workdir={tmp_path / 'mixed'}"
    code, _, errors = start("pairs", *bert, f"--data={mixed}")
    assert code == 0, errors
    code, out, errors = start("pairs", run, work, f"--data={long}")
    assert code == 0 and "2 of 3 items count as ties" in out, errors
    made = predictions.read(tmp_path / "work/seed0/predictions.tsv")
    assert made.texts == (["a b " * 99, "b", "a b"], ["b b", "a b", "b b"])  # compared by item
    write_rows(long, {"good": "b a", "bad": "b b"})
    assert "another evaluation" in refused("pairs", run, work, f"--data={long}")
