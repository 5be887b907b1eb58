"""N-grams in the text of a run, scored as `eval.lm` scores the run."""

import json
import pathlib
from typing import Any

import pytest
import tiny

from scalelab.config import exits
from scalelab.eval import ngram


def test_the_program_scores_the_documents_of_eval_lm(tmp_path: pathlib.Path, capsys: Any) -> None:
    corpus = tiny.write_wikitext(tmp_path / "corpus")
    run = tiny.write_run(tmp_path / "run", "gpt2", corpus, tmp_path / "cache")
    made = {}
    for order in (1, 3):
        flags = [f"--run={run}", f"--corpus=wikitext:{corpus}", f"--order={order}"]
        folder = tmp_path / f"order_{order}"
        ngram.main(ngram.parser().parse_args([*flags, f"--workdir={folder}"]))
        made[order] = json.loads((folder / "result.json").read_text())
    assert "3-grams of" in capsys.readouterr().out
    lines = (tmp_path / "order_3/documents.tsv").read_text().splitlines()
    assert len(lines) == 1 + made[3]["documents"]
    assert made[3]["predicted"] == made[3]["tokens"] - made[3]["documents"]
    assert made[3]["perplexity"] < made[1]["perplexity"] < 300
    with pytest.raises((ValueError, exits.Stopped), match="in use"):
        ngram.main(ngram.parser().parse_args([*flags, f"--workdir={folder}"]))
