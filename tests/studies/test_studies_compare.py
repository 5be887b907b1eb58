"""What the repository's studies compare: runs differ in what they declare, and by what they say."""

import dataclasses
import json

import pytest
import tiny

from scalelab.config import pretraining as config_lib
from scalelab.lab.compare import comparability
from scalelab.lab.load import study_runs
from scalelab.records import run_files
from scalelab.records.run_files import RunResult
from scalelab.studies import expand, spec

STUDIES = sorted(p.stem for p in (tiny.ROOT / "configs/studies").glob("*.py"))
PAIRS, SENTENCES = 154_163_042, 97_718_060  # tokens of an epoch: BERT's, RoBERTa's (Table 7.1)


def load(name: str, scale: str) -> spec.StudySpec:
    arguments = f"scale={scale}" if name.startswith(("thesis", "formats")) else ""
    return spec.resolve(tiny.config_module(f"studies/{name}").get_config(arguments).to_dict())


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("scale", ["full", "medium", "small"])
def test_the_contract_lets_pass_what_a_study_plans(name: str, scale: str, tmp_path) -> None:
    """Every pair of runs, as if all had finished: any field that differs is declared free."""
    made = load(name, scale)
    planned = expand.expand_runs(made)
    expand.write(made, planned, tmp_path, "")
    clocks = dict.fromkeys(("steps", "tokens", "flops", "seconds"), 1000)
    for run in planned:
        folder = tmp_path / "runs" / run.name
        folder.mkdir(parents=True)
        facts = {"system": run.system, "shape": run.shape, "n_model": 1, "seed": run.seed}
        result = RunResult(**facts, **clocks, data_hash="d", eval={"128": {"loss": 3.0}})
        run_files.write_result(folder, result)
        (folder / "config.json").write_text(json.dumps(dataclasses.asdict(run.config)))
        (folder / "environment.json").write_text(json.dumps({"numerics": 1}))
    study = study_runs.read(tmp_path)
    assert all(run.finished for run in study.runs) and comparability.check(study) == []


def formats(arguments: str) -> dict[str, config_lib.Config]:
    """Configs of the first shape by variant; GPT's is "left_to_right"."""
    values = tiny.config_module("studies/formats").get_config(arguments).to_dict()
    runs = expand.expand_runs(spec.resolve(values))
    first = runs[0].shape
    return {run.variant: run.config for run in runs if run.shape == first and run.seed == 0}


@pytest.mark.parametrize("scale", ["full", "medium", "small", "tiny"])
def test_formats_cross_objective_and_format(scale: str) -> None:
    resolved = formats(f"scale={scale}")
    assert {name: (c.objective, c.data.format) for name, c in resolved.items()} == {
        "default": ("mlm+nsp", "segment_pair"),
        "mlm_on_pairs": ("mlm", "segment_pair"),
        "mlm_on_sentences": ("mlm", "doc_sentences"),
        "pairs_unique": ("mlm+nsp", "segment_pair"),
        "mlm_on_pairs_unique": ("mlm", "segment_pair"),
        "left_to_right": ("clm", "doc_sentences"),
    }
    masked = {"objective": "mlm", "objective_options": {"whole_words": None}}
    other = dataclasses.replace(resolved["left_to_right"], system="bert", **masked)
    if scale == "full":  # the phases' shares are those of Table 7.1
        other = dataclasses.replace(other, long=resolved["mlm_on_sentences"].long)
    assert other == resolved["mlm_on_sentences"]  # the left-to-right arm differs in its model alone


@pytest.mark.parametrize("scale", ["medium", "small", "tiny"])
def test_unique_variants_have_more_tokens_and_warm_up_as_long(scale: str) -> None:
    """Pairs then pass over WikiText-103 as often as sentences; `repeats` sets the factor."""
    told = formats(f"scale={scale},repeats=2,corpus=text:/a,,b=1")["pairs_unique"]
    assert (told.optim.total_tokens, told.data.corpus) == (
        2 * formats(f"scale={scale}")["default"].optim.total_tokens, "text:/a,b=1"
    )  # fmt: skip
    resolved = formats(f"scale={scale}")
    tokens = {name: c.optim.total_tokens for name, c in resolved.items()}
    base = tokens["default"]
    assert tokens["mlm_on_pairs"] == tokens["mlm_on_sentences"] == tokens["left_to_right"] == base
    assert tokens["pairs_unique"] == tokens["mlm_on_pairs_unique"]
    assert tokens["pairs_unique"] / base == pytest.approx(PAIRS / SENTENCES, rel=1e-4)
    for config in resolved.values():
        assert config.optim.warmup_tokens == pytest.approx(0.1 * config.optim.total_tokens)
