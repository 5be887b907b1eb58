"""Budgets of equal passes: counted in the examples of the corpus at hand, whatever it is."""

import dataclasses
import json
import pathlib

import a_study
import pytest
import tiny

from scalelab import systems
from scalelab.data import load_data
from scalelab.studies import expand, packing, spec

FORMATS = ("mlm_on_sentences", "pairs_unique", "mlm_on_pairs_unique")


@pytest.fixture
def no_corpus_is_prepared() -> None:
    """Here one is."""


@pytest.fixture
def made(wikitext: pathlib.Path, cache_dir: pathlib.Path) -> spec.StudySpec:
    """The study `formats` at scale tiny on a small corpus, at shorter lengths."""
    values = tiny.config_module("studies/formats").get_config("scale=tiny").to_dict()
    pretrain = values["pretrain"]
    pretrain["data"]["corpus"] = f"wikitext:{wikitext}"
    pretrain["tokenizer"]["vocab_size"] = 300
    pretrain["short"]["max_len"], pretrain["long"]["max_len"] = 16, 64
    pretrain["net"]["max_len"] = 64
    pretrain["machine"] |= {"cache_dir": str(cache_dir), "loader": "numpy"}
    return spec.resolve(values)


def by_variant(made: spec.StudySpec, workdir: pathlib.Path) -> dict[str, expand.PlannedRun]:
    return {run.variant: run for run in expand.expand_runs(made, workdir) if run.seed == 0}


def test_unique_variants_pass_over_any_corpus_as_often(made, tmp_path) -> None:
    """Of a corpus whose pairs do not repeat it 1.58 times, as WikiText-103's do."""
    runs = by_variant(made, tmp_path)
    data = {name: load_data(runs[name].config, systems.load("bert")) for name in FORMATS}
    a_pass = {name: data[name].pass_tokens for name in FORMATS}
    ratio = a_pass["pairs_unique"] / a_pass["mlm_on_sentences"]
    assert ratio < 1.3
    budgets = {name: runs[name].config.optim.total_tokens for name in FORMATS}
    read = {name: budgets[name] / a_pass[name] for name in FORMATS}
    assert budgets["mlm_on_sentences"] == 1e5
    assert read == pytest.approx(dict.fromkeys(FORMATS, read["mlm_on_sentences"]), rel=1e-3)
    for name in FORMATS:
        optim = runs[name].config.optim
        assert optim.warmup_tokens == pytest.approx(0.1 * optim.total_tokens, rel=1e-3)


def test_the_count_is_kept_and_packed(made, tmp_path, monkeypatch) -> None:
    before = by_variant(made, tmp_path)
    assert len(json.loads((tmp_path / expand.PASSES).read_text())) == 2  # of each format

    def gone(*_: object, **__: object) -> None:
        raise ValueError("no corpus")

    monkeypatch.setattr("scalelab.data.load_data", gone)
    assert by_variant(made, tmp_path) == before
    expand.write(made, expand.expand_runs(made, tmp_path), tmp_path, "")
    packing.pack(tmp_path, None, tmp_path / "to")
    assert by_variant(made, tmp_path / "to") == before
    (tmp_path / expand.PASSES).write_text("[]")
    with pytest.raises(ValueError, match="no corpus"):
        by_variant(made, tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [("basline", "run .*'baseline'"), ("more", "another variant"), ("again", "xpass:again")],
)
def test_what_it_may_not_name(other: str, message: str, tmp_path) -> None:
    made = a_study.make(
        variants={
            "baseline": (),
            "more": (f"optim.total_steps=xpass:{other}",),
            "again": ("optim.total_steps=xpass:baseline",),
        },
        stages={"main": a_study.stage(variants=("more",))},
    )
    with pytest.raises(ValueError, match=message):
        expand.expand_runs(made, tmp_path)


def test_order_and_net_do_not_count(made, tmp_path, monkeypatch) -> None:
    """One count serves all shapes, budgets and orders of the same examples."""
    config = by_variant(made, tmp_path)["baseline"].config
    known = expand.pass_tokens(config, tmp_path)
    monkeypatch.setattr("scalelab.data.load_data", None)
    data = dataclasses.replace(config.data, order_seed=5)
    net = dataclasses.replace(config.net, width=64)
    other = dataclasses.replace(config, data=data, net=net, objective="mlm")
    assert expand.pass_tokens(other, tmp_path) == known
    with pytest.raises(TypeError):  # options of a format change its examples, so they are counted
        expand.pass_tokens(dataclasses.replace(other, format_options={"a": 1}), tmp_path)
