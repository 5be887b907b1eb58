"""BabyLM's evaluation: its files, both columns against their definitions, and what it refuses."""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
from scipy import stats
from task_folders import read_seed, write_rows

from scalelab.eval import babylm, items, reading_times, sentence_scores
from scalelab.eval.evaluation import Asked
from scalelab.eval.items import Item
from scalelab.training import pretrained

NAMES = ["Ann", "Bob", "Kim", "Lee", "Max", "Sam"]
WORDS = ["river", "house", "small", "longer", "again", "seven"]


def reading_rows() -> list[dict[str, Any]]:
    """Words of 8 sentences; one of them begins with the word None, as in the set."""
    rng, found = np.random.default_rng(0), []
    for sentence in range(8):
        start = "None" if sentence == 3 else NAMES[sentence % 6]
        words = [start, *(str(word) for word in rng.permutation(WORDS))]
        for k in range(1, len(words)):
            times = dict.fromkeys((*reading_times.EYE, reading_times.SELF_PACED))
            found.append({
                "item": " ".join(words[:k]), "word": words[k], "context_length": k,
                "prev_item": " ".join(words[: k - 1]), "prev_word": words[k - 1],
                "prev_length": len(words[k - 1]) if k > 1 else -1, "length": len(words[k]),
                "Subtlex_log10": rng.normal(), "sent_id": sentence,
                **{name: rng.normal(300, 50) for name in times},
            })  # fmt: skip
    return found


@pytest.fixture
def data(tmp_path) -> pathlib.Path:
    """The evaluation data, BLiMP beside them."""
    for uid in ("one", "two"):
        rows = [{"sentence_good": f"{name} sees a {word}.", "UID": uid, "linguistics_term": "x",
                 "sentence_bad": f"{name} see a {word}."}
                for name in NAMES for word in WORDS[:2]]  # fmt: skip
        rows[5]["sentence_bad"] = rows[5]["sentence_good"]  # a tie
        write_rows(tmp_path / f"blimp/data/{uid}.jsonl", *rows)
    folder = tmp_path / "babylm"
    options = ["the map.", "the hat.", "a cat."]
    for stem in ("regular", "ambiref"):
        rows = [{"numops": n, "input_prefix": f"Box {n} has {name}, it has ",
                 "options": options if name != "Sam" else [*options, "nothing."]}
                for n in (0, 1) for name in NAMES]  # fmt: skip
        write_rows(folder / f"eval/entity_tracking/{stem}.jsonl", *rows)
    rows = [{"sentences": f"A noun: {w}. {w}ity\tA noun: {w}. {w}ness", "ratio": k / 6}
            for k, w in enumerate(WORDS)]  # fmt: skip
    write_rows(folder / "eval/wug_adj_nominalization/wug.jsonl", *rows)
    (folder / "eval/reading").mkdir()
    pd.DataFrame(reading_rows()).to_csv(folder / "eval" / babylm.READING)
    for name, kept in (("filtered", {"two": [5, 1, 7], "one": [0, 5]}), ("fast", {"two": [7]})):
        (folder / f"babylm_2025_{name}_rows.json").write_text(json.dumps(kept))
    return folder


def ask(opened: pretrained.Pretrained, found: list, tmp_path, **options: Any) -> Any:
    options = {name: default for name, (default, _) in babylm.OPTIONS.items()} | options
    partial = tmp_path / "partial.npz"
    partial.unlink(missing_ok=True)  # another model's
    return babylm.measure(opened, found, Asked(partial, tmp_path, options, 512))


def test_both_layouts_hold_the_same_questions(data, tmp_path) -> None:
    found = babylm.read(data)
    pairs = [q for q in found if isinstance(q, babylm.Question) and q.task == "blimp"]
    assert [q.item.texts[0] for q in pairs[:3]] == [
        "Kim sees a house.", "Ann sees a house.", "Lee sees a house."
    ]  # fmt: skip
    assert [(q.item.groups[0], q.fast) for q in pairs[2:]] == [
        ("two", True), ("one", False), ("one", False)
    ]  # fmt: skip
    entities = [q for q in found if isinstance(q, babylm.Question) and q.task == "entity_tracking"]
    assert len(entities) == 20  # 4 of the 24 have an option "nothing"
    first = entities[-1]
    assert first.item.groups == ("regular_1_ops", "entity tracking") and first.fast
    assert first.item.spans is not None and first.item.spans[1] is not None
    ((begin, end),) = first.item.spans[1]
    assert first.item.texts[1][begin:end] == first.answers[1] == "the hat."

    (data / "eval").rename(tmp_path / "full_eval")
    for uid in ("one", "two"):
        own = [q.item.texts for q in pairs if q.item.groups[0] == uid]
        rows = [{"sentence_good": a, "sentence_bad": b, "UID": uid} for a, b in own]
        write_rows(tmp_path / f"full_eval/blimp_filtered/{uid}.jsonl", *rows)
    pair = {"sentence_good": "What did Ann see? A map.", "sentence_bad": "What did Ann see? Bob."}
    write_rows(tmp_path / "full_eval/supplement_filtered/qa_easy.jsonl", pair)
    again = babylm.read(tmp_path / "full_eval")
    (extra,) = [q for q in again if isinstance(q, babylm.Question) and q.task == "supplement"]
    assert extra.item.groups == ("qa_easy", "BLiMP supplement")
    again.remove(extra)
    key = repr
    assert sorted((q._replace(fast=False) for q in again if not isinstance(q, dict)), key=key) == (
        sorted((q._replace(fast=False) for q in found if not isinstance(q, dict)), key=key)
    )


@pytest.mark.realdata
def test_the_real_files_have_as_many_items_as_the_pipeline_checks() -> None:
    """Sizes from `collate_preds.py` of 2026; the last two numbers of operations of each file."""
    root = pathlib.Path(os.environ.get("SCALELAB_DATA", tiny.ROOT.parent / "shared/data"))
    if not (root / "babylm").is_dir():
        pytest.skip(f"{root}/babylm is absent")
    found = babylm.read(root / "babylm")
    questions = [q for q in found if isinstance(q, babylm.Question)]
    sizes = Counter(q.item.groups[0] for q in questions)
    expected = {
        "superlative_quantifiers_2": 986, "determiner_noun_agreement_irregular_1": 681,
        "regular_4_ops": 388, "regular_5_ops": 94, "ambiref_4_ops": 434, "ambiref_5_ops": 123,
        "move_contents_4_ops": 353, "move_contents_5_ops": 116, "wug_adj": 200,
    }  # fmt: skip
    assert {uid: sizes[uid] for uid in expected} == expected
    fast = Counter(q.item.groups[0] for q in questions if q.task == "blimp" and q.fast)
    assert set(fast.values()) == {200} and len(fast) == 67
    assert len(found) - len(questions) == 1726


def test_ties_win_or_share() -> None:
    asked = [Item(("g",), ("a", "b", "c"), right) for right in (0, 0, 0, 2, 1)]
    rows = [[2, 1, 0], [1, 1, 1], [0, 1, 1], [3, 3, 3], [-math.inf, 0, -math.inf]]
    wins, shares = items.split_ties(asked, np.array(rows, float))
    assert wins.tolist() == [True, True, False, False, True]
    assert shares.tolist() == pytest.approx([1, 1 / 3, 0, 1 / 3, 1])


def test_columns_of_planted_scores() -> None:
    """Means over paradigms, not over items; ties; Spearman's correlation of preferences."""
    pair = [babylm.Question("blimp", Item((uid, "BLiMP"), ("a", "b"), 0), ("a", "b"))
            for uid in "uuuv"]  # fmt: skip
    wug = [babylm.Question("wug_adj", Item(("wug_adj", "w"), ("a", "b"), 0), ("a", "b"), r)
           for r in (0.1, 0.9, 0.4, 0.6)]  # fmt: skip
    sums = np.array([[1, 0], [1, 0], [0, 1], [5, 5], [0, 3], [0, -2], [40, 0], [60, 0.0]]) - 99
    counts = np.array([[2, 1]] * 4 + [[1, 1]] * 4)
    rows = babylm._tabulate([*pair, *wug], (sums, counts), (sums, counts))
    table = pd.DataFrame(rows, columns=babylm.COLUMNS).set_index("group")
    assert table.loc["BLiMP", "official"] == pytest.approx((2 / 3 + 1) / 2)
    assert table.loc["BLiMP", "fair"] == pytest.approx((2 / 3 + 0.5) / 2)
    assert table.loc["BLiMP", "by_mean"] == 1.0
    row = table.loc["wug adjectives"]
    gaps = sums[4:, 0] - sums[4:, 1]
    assert row["fair"] == pytest.approx(stats.spearmanr(gaps, [0.1, 0.9, 0.4, 0.6])[0])
    chances = 1 / (1 + np.exp(-gaps.astype(np.float32)))  # 40 and 60 nats are both 1.0
    assert row["official"] == pytest.approx(stats.spearmanr(chances, [0.1, 0.9, 0.4, 0.6])[0])
    assert row["official"] != row["fair"] and row["low"] < row["fair"] < row["high"]


def test_explained_variance_is_that_of_two_regressions() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    from sklearn.preprocessing import PolynomialFeatures

    rng = np.random.default_rng(0)
    columns = {name: rng.normal(5, 2, 80) for name in ("a", "b", "surprisal", "noise")}
    columns["time"] = columns["a"] * columns["b"] + columns["surprisal"] + 3 * columns["noise"]
    columns["surprisal"][7] = np.nan
    used = np.arange(80) != 7
    y, x = columns["time"][used], np.stack([columns[k][used] for k in "ab"], axis=1)
    x = PolynomialFeatures(2, interaction_only=True, include_bias=False).fit_transform(x)
    both = np.column_stack([x, columns["surprisal"][used]])
    without, with_it = (linear.LinearRegression().fit(z, y).score(z, y) for z in (x, both))
    made = reading_times.explained(columns, "time", ["a", "b"])
    assert made == pytest.approx((with_it - without) / (1 - without), rel=1e-6)

    weights = rng.integers(0, 3, 80)
    repeated = {name: np.repeat(values, weights) for name, values in columns.items()}
    assert reading_times.explained(columns, "time", ["a", "b"], weights) == pytest.approx(
        reading_times.explained(repeated, "time", ["a", "b"])
    )


def test_surprisals_in_context_are_scores_of_the_words(pretrained_runs) -> None:
    """The engine of sentences gives the same; the pipeline's encoding of words gives others."""
    opened = pretrained.load(pretrained_runs("gpt2"))
    words = [("Ann sees the", "river"), ("One small", "house"), ("None", "of")]
    texts = [" ".join(pair) for pair in words]
    spans = [((len(context), len(text)),) for (context, _), text in zip(words, texts, strict=True)]
    encoded = sentence_scores.encode(opened.tokenizer, texts, spans)
    asked = Asked(None, pathlib.Path(), {})
    expected = encoded.add_up(sentence_scores.score(opened, encoded, "log_likelihood", asked))
    made = reading_times.surprisals(opened, words, official=False)
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    theirs = reading_times.surprisals(opened, words, official=True)
    assert (np.abs(theirs - made) > 1e-3).any()
    long = reading_times.surprisals(opened, [("a " * 99, "b"), *words], official=False)
    assert np.isnan(long[0]) and np.isfinite(long[1:]).all()


@pytest.mark.parity
@pytest.mark.parametrize("system", ["gpt", "gpt2", "bert", "roberta", "albert"])
def test_surprisals_of_an_export(pretrained_runs, exported, system: str) -> None:
    """Both forms against torch, a word at a time, by the exported tokenizer."""
    torch = pytest.importorskip("torch")
    opened = pretrained.load(pretrained_runs(system))
    masked = opened.predicts == "masked"
    tokenizer, net = exported(system)

    def chance(context: str, target: int) -> float:
        text = context + (tokenizer.mask_token * 3 if masked else "")
        given = tokenizer(text, return_tensors="pt")
        at = -1
        if masked:
            at = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0, 0]
        with torch.no_grad():
            return float(torch.log_softmax(net(**given).logits[0, at], -1)[target])

    words = [("Ann sees the", "river"), ("One small", "unbelievable"), ("None", "of")]
    expected = []
    for context, word in words:
        pieces, total = tokenizer(word, add_special_tokens=False)["input_ids"], 0.0
        for k, piece in enumerate(pieces):
            text = tokenizer.decode(piece)
            if k:
                piece = tokenizer(text, add_special_tokens=False)["input_ids"][0]
            total -= chance(context, piece)
            context += text
        expected.append(total)
    made = reading_times.surprisals(opened, words, official=True)
    np.testing.assert_allclose(made, expected, atol=1e-4)


@pytest.mark.parametrize("system", ["gpt2", pytest.param("bert", marks=pytest.mark.slow)])
def test_submissions_hold_what_the_table_says(pretrained_runs, data, tmp_path, system: str) -> None:
    """The official column again, from the files for submissions and those of the data alone."""
    opened = pretrained.load(pretrained_runs(system))
    found = babylm.read(data)
    made = ask(opened, found, tmp_path)
    table = made.table.set_index("group")["official"]
    backend = {"gpt2": "causal", "bert": "mlm"}[system]
    root = f"results/{system}/main/zero_shot/{backend}"
    rights: dict[tuple[str, str], list[str]] = {}
    for question in found:
        if isinstance(question, babylm.Question):
            key = question.task, question.item.groups[0]
            rights.setdefault(key, []).append(question.answers[0])
    for task, folder in (
        ("blimp", "blimp/blimp_filtered"), ("entity_tracking", "entity_tracking/entity_tracking")
    ):  # fmt: skip
        content = made.files[f"{root}/{folder}/predictions.json"]
        shares = []
        for uid, own in content.items():
            preds = [row["pred"] for row in own["predictions"]]
            assert [row["id"] for row in own["predictions"]][-1] == f"{uid}_{len(preds) - 1}"
            assert len(preds) == len(rights[task, uid])
            shares.append(np.mean([a == b for a, b in zip(preds, rights[task, uid], strict=True)]))
            assert table[uid] == pytest.approx(shares[-1])
        assert table[babylm.KINDS[task].title] == pytest.approx(np.mean(shares))
    wugs = made.files[f"{root}/wug_adj/wug_adj_nominalization/predictions.json"]["wug_adj"]
    rho = stats.spearmanr([row["prob"] for row in wugs["predictions"]], np.arange(6))[0]
    assert table["wug adjectives"] == pytest.approx(rho)
    words = made.files[f"{root}/reading/predictions.json"]["reading"]["predictions"]
    assert [row["id"] for row in words] == list(range(48))
    starts = [k for k, row in enumerate(words) if np.isnan(row["prev_pred"])]
    assert starts == sorted([*range(0, 48, 6), 19])  # after None, as pandas reads it
    assert made.scores["accuracy"] == (made.outputs.argmax(axis=1) == made.gold).mean()


def test_the_fair_column_is_that_of_float32(pretrained_runs, data, tmp_path) -> None:
    opened = pretrained.load(pretrained_runs("gpt2"))
    found = babylm.read(data)
    config = dataclasses.replace(
        opened.config, model=dataclasses.replace(opened.config.model, dtype="bfloat16")
    )
    made, rough = (ask(run, found, tmp_path) for run in (
        opened, dataclasses.replace(opened, config=config)))  # fmt: skip
    pd.testing.assert_series_equal(made.table["fair"], rough.table["fair"])
    # The official scores of texts, which wugs write down; readings are scored elsewhere.
    name = "results/gpt2/main/zero_shot/causal/wug_adj/wug_adj_nominalization/predictions.json"
    exact, rounded = (
        [row["prob"] for row in one.files[name]["wug_adj"]["predictions"]] for one in (made, rough)
    )
    assert not np.allclose(exact, rounded, rtol=1e-6)


def test_the_program_and_its_options(pretrained_runs, data, tmp_path, start, refused) -> None:
    given = f"--run={pretrained_runs('gpt2')}", f"--data={data}"
    program = functools.partial(start, babylm, *given)
    entities, times = data / "eval/entity_tracking/regular.jsonl", data / "eval" / babylm.READING
    row = {"numops": 9, "input_prefix": "a " * 99, "options": ["b.", "c."]}
    entities.write_text(entities.read_text() + json.dumps(row) + "\n")
    words = pd.read_csv(times, keep_default_na=False)
    words.loc[47, "item"] = "a " * 99
    words.to_csv(times, index=False)
    code, out, errors = program(
        f"--workdir={tmp_path / 'w'}", "--rows=fast", "--per_group=3", "--revision=chck_1M"
    )
    assert code == 0, errors
    assert "BLiMP supplement: nothing" in out and "only the first 3" in out
    assert "without regular_9_ops" in out and "reading: 1 of 48" in out
    folder = tmp_path / "w/seed0"
    result, written = read_seed(tmp_path / "w")
    assert result.task == "babylm" and len(written.gold) == 1
    (path,) = (folder / "results").rglob("predictions.json")  # others are not whole
    assert path.parent == folder / "results/gpt2/chck_1M/zero_shot/causal/reading"
    assert json.loads(path.read_text())["reading"]
    groups = pd.read_csv(folder / "groups.tsv", sep="\t").set_index("group")
    assert groups.loc["entity tracking", "items"] == 6

    (data / "babylm_2025_fast_rows.json").unlink()
    work = f"--workdir={tmp_path / 'bad'}"
    cases = [(["--rows=fast"], "fast_rows.json"), (["--rows=all"], "expected full or fast"),
             (["--step=98765"], "98765")]  # fmt: skip
    for more, expected in cases:
        assert expected in refused(babylm, *given, work, *more)
    rows = data / "babylm_2025_filtered_rows.json"
    for wrong in ('{"two": [12]}', '{"three": [0]}', "[1]"):
        rows.write_text(wrong)
        assert rows.name in refused(babylm, *given, work)
    rows.unlink()
    assert rows.name in refused(babylm, *given, work)
    pair = {"sentence_good": "a b", "sentence_bad": "b a"}
    write_rows(data / "eval/blimp_filtered/x.jsonl", pair)
    (data / "eval" / babylm.READING).unlink()
    assert babylm.READING in refused(babylm, *given, work)
