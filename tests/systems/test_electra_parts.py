"""A run of two models is exported as one of them; each scores as it does in the run."""

import json
import pathlib
from typing import Any

import fine_tuned
import in_process
import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab.interop import exporting, hf, importing
from scalelab.nn.heads import token_logits
from scalelab.training import pretrained

pytestmark = pytest.mark.slow

CASES: list[dict[str, Any]] = [{}, {"embed_width": 6, "embeddings": "own", "generator_rate": 0.5}]


@pytest.fixture(params=CASES, ids=str)
def run(request, wikitext, cache_dir, tmp_path) -> pathlib.Path:
    folder, options = tmp_path / "run", {"system_options": request.param}
    return tiny.write_run(folder, "electra", wikitext, cache_dir, **options)


def scores(run: pathlib.Path, part: str) -> np.ndarray:
    """Scores of a part of a model, or of a model that is this part."""
    opened = pretrained.load(run)
    batch = tiny.batch(opened.system, 0, length=16)

    def forward(model: Any) -> jax.Array:
        if part == "generator":
            return token_logits(model, model.token_states(batch, train=False))
        return model.replaced_logits(model(batch, train=False)[0])

    return np.asarray(jax.jit(nn.apply(forward, opened.net))({"params": opened.params}))


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_out_and_back(run: pathlib.Path, tmp_path, part: str, capsys) -> None:
    flag = [] if part == "discriminator" else [f"--part={part}"]
    in_process.run(hf, ["export", f"{run}", f"--to={tmp_path}/out", *flag])
    assert part in capsys.readouterr().out
    config = json.loads((tmp_path / "out/config.json").read_text())
    name = {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}[part]
    assert config["architectures"] == [name]
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    back = pretrained.load(tmp_path / "back")
    assert back.config.system_options["generator_rate"] is None
    np.testing.assert_allclose(
        scores(tmp_path / "back", part), scores(run, part), rtol=1e-5, atol=1e-6
    )
    exporting.run(tmp_path / "back", tmp_path / "again")  # a model without parts is exported whole
    files = [(tmp_path / x / "model.safetensors").read_bytes() for x in ("out", "again")]
    assert files[0] == files[1]


def test_what_is_no_part(run: pathlib.Path, tmp_path, capsys) -> None:
    fine_tuned.make(run, tmp_path / "tuned", "double")
    for folder in (run, tmp_path / "tuned"):
        with pytest.raises(SystemExit) as end:
            in_process.run(hf, ["export", f"{folder}", f"--to={tmp_path}/out", "--part=teacher"])
        assert end.value.code == 2 and "--part=teacher" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_classifier_is_a_discriminator(run: pathlib.Path, tmp_path) -> None:
    _, params = fine_tuned.make(run, tmp_path / "tuned", "double")
    exporting.run(tmp_path / "tuned", tmp_path / "out")
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    back = pretrained.load_trained(tmp_path / "back")
    assert back["body"].keys() == {"embed", "discriminator"}
    for x, y in zip(*map(jax.tree.leaves, (params, back)), strict=True):
        np.testing.assert_array_equal(x, y)
