"""LAMA: a relation by hand, ranks by all scores of a row, transformers, and what is left out."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from task_folders import read_seed
from test_sentence_scores import logits, opened_run, token_logits

from scalelab.eval import evaluation, lama, suites
from scalelab.eval.lama import Fact
from scalelab.records import predictions, run_files
from scalelab.studies import jobs

SUBJECTS = ["Bada", "gedu dodo", "bada gedu"]


def facts_of(opened: Any) -> list[Fact]:
    """Questions about words of the vocabulary, each with two right answers."""
    pieces = (ids[0] for ids in lama.list_words(opened.tokenizer).values())
    words = [w for w in (opened.tokenizer.decode([k]).strip() for k in pieces) if w.isalpha()]
    return [
        Fact("P1", "TREx", f"{subject} dodo ", words[(7 * k + j) % len(words)], " .")
        for k, subject in enumerate(SUBJECTS)
        for j in (0, 3)
    ]


def asked() -> evaluation.Asked:
    options = {name: default for name, (default, _) in lama.OPTIONS.items()}
    return evaluation.Asked(None, pathlib.Path(), options, batch_tokens=128)


def all_words(opened: Any) -> np.ndarray:
    among = np.zeros(opened.config.tokenizer.vocab_size, bool)
    among[[k for same in lama.list_words(opened.tokenizer).values() for k in same]] = True
    return among


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_words_are_pieces_that_stand_alone(pretrained_runs, system: str) -> None:
    tokenizer = opened_run(pretrained_runs(system)).tokenizer
    words = lama.list_words(tokenizer)
    assert len(words) > 5 and not {"", "[mask]", "##a"} & words.keys()
    for text, ids in words.items():
        for k in ids:
            again = tokenizer.encode(f"a {tokenizer.decode([k]).strip()}")
            assert again[-1] == k and tokenizer.decode([k]).strip().casefold() == text


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_ranks_are_those_of_all_scores(pretrained_runs, system: str) -> None:
    """Words alone compete, without the other right object of the question."""
    opened = opened_run(pretrained_runs(system))
    facts, among = facts_of(opened), all_words(opened)
    pieces, ranks = lama.rank(opened, facts, among, asked())
    for k, fact in enumerate(facts):
        frame, causal = opened.tokenizer.frame(), system == "gpt2"
        row = [*frame.begin, *opened.tokenizer.encode(fact.before.strip())]
        if not causal:
            end = opened.tokenizer.encode(fact.after)
            row = [*row, opened.tokenizer.special_ids["mask"], *end, *frame.end]
        place = len(row) - 1 - (0 if causal else len(end) + len(frame.end))
        scores = logits(opened, row, token_logits)[place]
        allowed = among.copy()
        other = pieces[k + 1 if k % 2 == 0 else k - 1]
        assert pieces[k] == opened.tokenizer.encode(f"a {fact.answer}")[-1] != other
        allowed[other] = False
        assert ranks[k] == (scores[allowed] > scores[pieces[k]]).sum()
    unfiltered = lama.rank(opened, facts[::2], among, asked())[1]
    assert (unfiltered >= ranks[::2]).all()


OBJECTS = ["gedu", "Bada dodo", "dodo gedu bada", "bada"]


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_objects_of_one_piece_rank_as_words(pretrained_runs, tmp_path, system: str) -> None:
    opened = opened_run(pretrained_runs(system))
    facts, among = facts_of(opened), np.zeros(opened.config.tokenizer.vocab_size, bool)
    pieces, _ = lama.rank(opened, facts, ~among, asked())
    among[pieces] = True
    _, expected = lama.rank(opened, facts, among, asked())
    objects = {"P1": sorted({own.answer for own in facts})}
    given = dataclasses.replace(asked(), partial=tmp_path / "partial.npz")
    places, ranks = lama.rank_objects(opened, facts, objects, given)
    assert [objects["P1"][k] for k in places] == [own.answer for own in facts]
    assert ranks.tolist() == expected.tolist() and len({*expected.tolist()}) > 1


@pytest.mark.parity
@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_torch_ranks_objects_of_several_pieces_the_same(
    pretrained_runs, tmp_path, exported, system
) -> None:
    """Means over pieces, each masked in turn or read from the left; sums rank otherwise."""
    torch = pytest.importorskip("torch")
    tokenizer, model = exported(system)

    def log_probs(fact: Fact, answer: str) -> list[float]:
        text = fact.before + answer + fact.after
        made = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        ids, found = made["input_ids"], []
        for k, (_, stop) in enumerate(made["offset_mapping"][0].tolist()):
            if not len(fact.before) < stop <= len(fact.before + answer):
                continue
            row, place = ids.clone(), k - 1
            if system == "bert":
                row[0, k], place = tokenizer.mask_token_id, k
            with torch.no_grad():
                found.append(model(row).logits[0, place].log_softmax(0)[ids[0, k]].item())
        return found

    facts = [Fact(f"P{s}{answer}", "TREx", f"{s} dodo ", answer, " .")
             for s in SUBJECTS for answer in OBJECTS]  # fmt: skip
    given = dataclasses.replace(asked(), partial=tmp_path / "partial.npz")
    objects = {fact.relation: OBJECTS for fact in facts}
    _, ranks = lama.rank_objects(opened_run(pretrained_runs(system)), facts, objects, given)
    made = [[log_probs(fact, answer) for answer in OBJECTS] for fact in facts]
    assert max(map(len, made[0])) > 2
    by_mean, by_sum = (
        [sum(score(x) >= score(row[OBJECTS.index(fact.answer)]) for x in row) - 1
         for fact, row in zip(facts, made, strict=True)]
        for score in (np.mean, np.sum)
    )  # fmt: skip
    assert ranks.tolist() == by_mean != by_sum


def test_a_relation_by_hand() -> None:
    facts = [Fact("P1", "TREx", "x", "a", "")] * 4 + [Fact("P2", "TREx", "x", "a", "")]
    facts += [Fact("Squad", "Squad", "x", "a", "")] * 2
    usual, ranks = np.array([1, 1, 1, 0, 1, 0, 1]) == 1, np.array([0, 1, 19, 9, 0, 10, 3])
    table = lama.tabulate(facts, usual, ranks).set_index("group")
    named = table[~table.index.duplicated()]
    expected = {"P1": 0.25, "P2": 1.0, "TREx": 0.625, "Squad": 0.0, "mean": 1.25 / 3}
    assert named["P@1"].to_dict() == pytest.approx(expected | {"all items": 2 / 7})
    assert named.loc["P1", ["P@10", "MRR", "most_frequent"]].tolist() == pytest.approx(
        [0.75, (1 + 1 / 2 + 1 / 20 + 1 / 10) / 4, 0.75]
    )


def test_fewer_facts_are_spread_over_a_sorted_relation() -> None:
    facts = [Fact("P1", "TREx", "x", str(k // 10), "") for k in range(40)]
    facts += [Fact("P2", "TREx", "x", str(k), "") for k in range(2)]
    found = [(own.relation, own.answer) for own in lama.spread(facts, 4)]
    assert found == [*(("P1", str(k)) for k in range(4)), ("P2", "0"), ("P2", "1")]


def write_lama(folder: pathlib.Path, facts: list[Fact]) -> pathlib.Path:
    """Files in the set's layout, with facts that no model can be asked."""
    for part in ("TREx", "Google_RE", "Squad"):
        (folder / part).mkdir(parents=True)
    template = {"relation": "P1", "template": "[X] dodo [Y] .", "label": "something"}
    (folder / "relations.jsonl").write_text(json.dumps(template) + "\n")
    rows = [{"sub_label": f.before[:-6], "obj_label": f.answer} for f in facts]
    rows += [{"sub_label": "Bada", "obj_label": x} for x in ("bada gedu", "gedu dodo")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "TREx/P1.jsonl").write_text(lines)
    born = {"sub_label": "Bada", "obj_label": facts[0].answer, "masked_sentences": []}
    (folder / "Google_RE/date_of_birth_test.jsonl").write_text(json.dumps(born) + "\n")
    rows = [{"masked_sentences": [text], "obj_label": facts[0].answer, "sub_label": "Squad"}
            for text in ("Bada [MASK] gedu .", "[MASK] or [MASK]")]  # fmt: skip
    (folder / "Squad/test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_files(tmp_path) -> None:
    fact = Fact("P1", "TREx", "bada dodo ", "gedu", " .")
    found = lama.read(write_lama(tmp_path / "lama", [fact]))
    assert found[0] == Fact("date_of_birth", "Google_RE", "Bada (born ", "gedu", ").")
    assert found[1] == fact._replace(relation="P1 something")
    assert found[-1] == Fact("Squad", "Squad", "Bada ", "gedu", " gedu .")
    assert len(found) == 5
    with pytest.raises(ValueError, match="TREx"):
        lama.read(tmp_path)


def test_the_program_compares_over_a_common_vocabulary(
    pretrained_runs, tmp_path, start, refused
) -> None:
    program = functools.partial(start, "lama")
    runs = {system: pretrained_runs(system) for system in ("gpt2", "bert")}
    common = set.intersection(*({*lama.list_words(opened_run(r).tokenizer)} for r in runs.values()))
    words = sorted(filter(str.isalpha, common))
    facts = [Fact("P1", "TREx", f"{subject} dodo ", words[0], " .") for subject in SUBJECTS]
    data = write_lama(tmp_path / "lama", facts)
    given = [f"--run={runs['bert']}", f"--data={data}", "--answers=relation", "--per_relation=2"]
    code, out, errors = program(*given, f"--workdir={tmp_path / 'objects'}")
    assert code == 0, errors
    # "bada gedu" and "gedu dodo" are answers here, and each relation has two facts at most.
    assert "1 to 3 possible answers" in out and "not a possible answer" not in out
    assert len(predictions.read(tmp_path / "objects/seed0/predictions.tsv").gold) == 4
    texts, sizes = {}, {}
    for system, other in (("gpt2", "bert"), ("bert", "gpt2"), ("bert", None)):
        work = tmp_path / f"{system}-{other}"
        given = [f"--run={runs[system]}", f"--data={data}", f"--workdir={work}"]
        code, out, errors = program(*given, *([f"--vocabulary={runs[other]}"] if other else []))
        assert code == 0, errors
        assert "facts left out: the object is not a possible answer" in out
        # Only a model that reads both sides is asked where words follow.
        assert ("a word stands after" in out) == (other is not None)
        assert ("Squad" in out) == (other is None)
        result, made = read_seed(work)
        assert result.eval["dev"] == {"hits": (made.predicted == 1).mean()}
        texts[system, other] = made.texts
        sizes[system, other] = int(out[: out.index(" possible answers")].split("* ")[-1])
    assert texts["gpt2", "bert"] == texts["bert", "gpt2"]
    # A study gives the models that need not be trained yet: of each, the same answers and facts.
    peers = [jobs.untrained(tmp_path, opened_run(run).config) for run in runs.values()]
    known = set()
    for system, run in runs.items():
        work = tmp_path / f"{system}-study"
        out = evaluation.evaluate(suites.SUITES["lama"], run, data, work, peers=peers)
        assert f"{sizes['gpt2', 'bert']} possible answers, shared by 2 models" in out
        assert predictions.read(work / "seed0/predictions.tsv").texts == texts["gpt2", "bert"]
        known.add(json.dumps(run_files.read_config(work / "seed0")["peers"]))
    assert len(known) == 1
    assert sizes["gpt2", "bert"] == sizes["bert", "gpt2"] < sizes["bert", None]
    row = {"sub_label": "Bada", "obj_label": "\u4e00"}
    (data / "TREx/P1.jsonl").write_text((json.dumps(row) + "\n") * 99)
    given = [f"--run={runs['bert']}", f"--data={data}", f"--workdir={tmp_path / 'unknown'}"]
    assert "cannot write 99 of the" in refused("lama", *given)


@pytest.mark.parity
def test_transformers_ranks_the_same(pretrained_runs, exported) -> None:
    torch = pytest.importorskip("torch")
    opened = opened_run(pretrained_runs("bert"))
    facts = facts_of(opened)[::2]  # one object a question
    words = [k for same in lama.list_words(opened.tokenizer).values() for k in same]
    tokenizer, model = exported("bert")
    pieces, ranks = lama.rank(opened, facts, all_words(opened), asked())
    for fact, piece, rank in zip(facts, pieces, ranks, strict=True):
        row = torch.tensor([tokenizer(fact.before + fact.answer + fact.after)["input_ids"]])
        place = len(tokenizer(fact.before)["input_ids"]) - 1
        assert row[0, place] == piece
        row[0, place] = tokenizer.mask_token_id
        with torch.no_grad():
            scores = model(input_ids=row).logits[0, place]
        assert [k for k in scores.argsort(descending=True).tolist() if k in words][rank] == piece
