"""What comes in goes out: bits, dtypes, sizes and token ids that our nets do not need."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import fine_tuned
import jax
import ml_dtypes
import numpy as np
import pytest
import tiny
from damage import config, rename, tensors, without
from safetensors.numpy import load_file

from scalelab.interop import exporting, hf, importing, maps
from scalelab.runs import pretrained

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]


def there_and_back(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Imports a folder and exports it again."""
    importing.run(str(folder), tmp_path / "run")
    exporting.run(tmp_path / "run", tmp_path / "again")
    return tmp_path / "again"


def check_same_tensors(a: pathlib.Path, b: pathlib.Path) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (a, b))
    assert before.keys() == after.keys()
    for name, x in before.items():
        assert x.dtype == after[name].dtype and x.shape == after[name].shape, name
        assert x.tobytes() == after[name].tobytes(), name


def settings(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def more_rows(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.zeros((4, *x.shape[1:]), x.dtype)])


VOCABULARIES = {
    "bert": ("word_embeddings__weight", "predictions__bias"),
    "roberta": ("word_embeddings__weight", "lm_head__bias"),
    "gpt": ("tokens_embed__weight",),
    "gpt2": ("wte__weight",),
}


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_a_vocabulary_padded_with_zeros(pretrained_runs: Runs, tmp_path, system: str) -> None:
    """Rows whose bits tell nothing, only their number."""
    out = tmp_path / "out"
    exporting.run(pretrained_runs(system), out)
    tensors(**dict.fromkeys(VOCABULARIES[system], more_rows))(out)
    config(vocab_size=304)(out)
    again = there_and_back(out, tmp_path)
    check_same_tensors(out, again)
    assert settings(again)["vocab_size"] == 304


def test_two_segment_rows_of_zeros(pretrained_runs: Runs, tmp_path) -> None:
    out = tmp_path / "out"
    exporting.run(pretrained_runs("roberta"), out)
    tensors(token_type_embeddings__weight=lambda x: np.zeros((2, 8), np.float32))(out)
    config(type_vocab_size=2)(out)
    again = there_and_back(out, tmp_path)
    check_same_tensors(out, again)
    assert settings(again)["type_vocab_size"] == 2


def in_dtype(*dtypes: Any) -> Callable[[pathlib.Path], None]:
    """Makes a folder's tensors of some dtypes, in turn."""

    def damage(folder: pathlib.Path) -> None:
        names = sorted(load_file(folder / "model.safetensors"))
        chosen = {name: np.dtype(dtypes[i % len(dtypes)]) for i, name in enumerate(names)}
        tensors(**{n: lambda x, d=d: x.astype(d) for n, d in chosen.items()})(folder)

    return damage


@pytest.mark.parametrize(
    "dtypes", [(np.float16,), (ml_dtypes.bfloat16,), (ml_dtypes.bfloat16, np.float32, np.float16)]
)
def test_the_dtypes_of_the_source(pretrained_runs: Runs, tmp_path, dtypes: Any, capsys) -> None:
    out = tmp_path / "out"
    exporting.run(pretrained_runs("roberta"), out)
    in_dtype(*dtypes)(out)
    check_same_tensors(out, there_and_back(out, tmp_path))
    hf.main(["export", str(tmp_path / "run"), f"--to={tmp_path / 'whole'}", "--dtype=float32"])
    assert {x.dtype.name for x in load_file(tmp_path / "whole/model.safetensors").values()} == {
        "float32"
    }


def test_bfloat16_on_request(pretrained_runs: Runs, tmp_path) -> None:
    hf.main(["export", str(pretrained_runs("gpt")), f"--to={tmp_path}/out", "--dtype=bfloat16"])
    exporting.run(pretrained_runs("gpt"), tmp_path / "whole")
    half, whole = (load_file(tmp_path / n / "model.safetensors") for n in ("out", "whole"))
    for name, x in whole.items():
        np.testing.assert_array_equal(half[name], x.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_a_table_under_the_name_of_the_head_alone(
    pretrained_runs: Runs, tmp_path, system: str
) -> None:
    """As safetensors.torch.save_model leaves it; transformers loads it as the embedding too."""
    out, alone = tmp_path / "out", tmp_path / "alone"
    exporting.run(pretrained_runs(system), out)
    shutil.copytree(out, alone)
    other = {original: name for name, original in maps.load(system).tied}
    rename(lambda name: other.get(name, name))(alone)
    assert maps.load(system).tied[0][0] in load_file(alone / "model.safetensors")
    check_same_tensors(out, there_and_back(alone, tmp_path))
    config(tie_word_embeddings=False)(alone)
    name = maps.load(system).tied[0][1]
    with pytest.raises(ValueError, match=f"(?s)missing.*{name}"):
        importing.run(str(alone), tmp_path / "untied")


def equal(a: Any, b: Any) -> bool:
    same = jax.tree.map(lambda x, y: np.array_equal(x, y) and x.dtype == y.dtype, a, b)
    return all(jax.tree.leaves(same)) and len(jax.tree.leaves(a)) > 10


@pytest.mark.parametrize("system", ["gpt", "gpt2"])
def test_a_bias_that_their_class_has_not(pretrained_runs: Runs, tmp_path, system: str) -> None:
    _, params = fine_tuned.make(pretrained_runs(system), tmp_path / "tuned", "single")
    assert np.abs(params["head"]["out"]["bias"]).max() > 0.1
    out = tmp_path / "out"
    exporting.run(tmp_path / "tuned", out)
    again = there_and_back(out, tmp_path)
    assert equal(params, pretrained.load_trained(tmp_path / "run"))
    check_same_tensors(out, again)
    # Where somebody changed the tensors, what lies beside them is of others.
    tensors(score__weight=lambda x: 2 * x)(out)
    importing.run(str(out), tmp_path / "changed")
    changed = pretrained.load_trained(tmp_path / "changed")
    assert not np.asarray(changed["head"]["out"]["bias"]).any()
    (out / "scalelab.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="scalelab.safetensors"):
        importing.run(str(out), tmp_path / "damaged")
    without("scalelab.safetensors")(out)
    importing.run(str(out), tmp_path / "alone")


def test_twelve_classes_keep_their_order(pretrained_runs: Runs, tmp_path) -> None:
    """As text, "10" is before "2"."""
    labels = [f"mood {letter}" for letter in "zyxwvutsrqpo"]
    _, params = fine_tuned.make(
        pretrained_runs("bert"), tmp_path / "tuned", "double", 12, task="moods", labels=labels
    )
    out = tmp_path / "out"
    exporting.run(tmp_path / "tuned", out)
    assert settings(out)["id2label"] == {str(i): label for i, label in enumerate(labels)}
    as_text = dict(sorted(settings(out)["id2label"].items()))  # as some tools write it
    assert list(as_text)[2] == "10"
    config(id2label=as_text)(out)
    again = there_and_back(out, tmp_path)
    assert settings(tmp_path / "run")["labels"] == labels
    assert settings(again)["id2label"] == as_text
    assert equal(params, pretrained.load_trained(tmp_path / "run"))


@pytest.mark.parametrize("pad", [None, 7])
def test_the_padding_of_the_source(pretrained_runs: Runs, tmp_path, pad: int | None) -> None:
    """A GPT's class reads the last token that is not this one: another would be another model."""
    fine_tuned.make(pretrained_runs("gpt"), tmp_path / "tuned", "single")
    out = tmp_path / "out"
    exporting.run(tmp_path / "tuned", out)
    config(pad_token_id=pad, eos_token_id=None, problem_type=None)(out)
    again = there_and_back(out, tmp_path)
    for name in ("pad_token_id", "eos_token_id", "problem_type"):
        assert settings(again)[name] == settings(out)[name], name


@pytest.mark.parametrize("system", ["gpt", "gpt2"])
def test_the_padding_of_a_fine_tuning_ends_no_text(
    pretrained_runs: Runs, tmp_path, system: str
) -> None:
    import transformers

    fine_tuned.make(pretrained_runs(system), tmp_path / "tuned", "single")
    exporting.run(tmp_path / "tuned", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    pad = settings(tmp_path / "out")["pad_token_id"]
    assert tokenizer.pad_token_id == pad is not None
    for text in ("bada", "bada \U0010ffff", "<|start|>", "<unk>", "<|endoftext|>"):
        assert tokenizer(text)["input_ids"][-1] != pad, text
        assert pad not in tokenizer(text, add_special_tokens=False)["input_ids"], text
