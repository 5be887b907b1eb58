"""Both ways against PyTorch: an import computes what they compute, an export what we do."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import fine_tuned
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file

from scalelab.formats import Frame
from scalelab.interop import exporting, importing, maps
from scalelab.interop.mapping import Architecture
from scalelab.runs import pretrained

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import real_text  # noqa: E402
import transformers  # noqa: E402

Runs = Callable[[str], pathlib.Path]
SHAPE, LENGTH = (3, 24, 2), 12


def save(model: Any, system: str, folder: pathlib.Path, **more: Any) -> None:
    """Writes a model and a tokenizer as transformers does."""
    model.float().save_pretrained(folder, **more)
    transformers.AutoTokenizer.from_pretrained(real_text.tokenizer_dir(system)).save_pretrained(
        folder
    )


def draw_all(model: Any) -> Any:
    """RoBERTa's constants too: its one segment, and the rows of its positions that nobody uses."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


@pytest.mark.parametrize("head", ["pretraining", "classify", "bare"])
@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_import_and_export_again(tmp_path, system: str, head: str) -> None:
    """Bit by bit, from one file or many."""
    model = draw_all(peers.make(system, SHAPE, LENGTH, head, vocab_size=real_text.VOCAB))
    many = {"max_shard_size": "40KB"} if head == "pretraining" else {}
    save(model, system, tmp_path / "theirs", **many)
    assert (len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1) == bool(many)
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    exporting.run(tmp_path / "run", tmp_path / "ours")
    expected = {}
    for file in (tmp_path / "theirs").glob("*.safetensors"):
        expected |= load_file(file)
    found = load_file(tmp_path / "ours/model.safetensors")
    assert found.keys() == expected.keys()
    different = [n for n, x in expected.items() if not np.array_equal(x, found[n])]
    assert different == []
    assert all(x.dtype == found[n].dtype for n, x in expected.items())
    again = type(model).from_pretrained(tmp_path / "ours").config.to_dict()
    before = type(model).from_pretrained(tmp_path / "theirs").config.to_dict()
    for name in ("hidden_size", "n_embd", "vocab_size", "type_vocab_size", "n_positions",
        "hidden_act", "afn", "layer_norm_eps", "max_position_embeddings", "architectures",
        "pad_token_id", "bos_token_id", "eos_token_id", "problem_type",
    ):  # fmt: skip
        assert again.get(name) == before.get(name), name


def test_robertas_segment_is_added_to_its_positions(tmp_path) -> None:
    model = draw_all(peers.make("roberta", SHAPE, LENGTH, vocab_size=real_text.VOCAB))
    segment = model.roberta.embeddings.token_type_embeddings.weight.detach()
    assert segment.abs().max().item() > 0.1
    save(model, "roberta", tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    opened = pretrained.load(tmp_path / "run")
    batch = real_text.batch("roberta", 0, length=LENGTH)
    ours = token_logits(opened, batch["tokens"][:1, : batch["lengths"][0]])
    row = batch["tokens"][:1, : batch["lengths"][0]].astype(np.int64)
    theirs = model(input_ids=torch.tensor(row)).logits.detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_family_is_added_by_a_map_alone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLM-RoBERTa has a class of its own, and no line of ours but this map, a RoBERTa's."""
    added = dataclasses.replace(
        maps.load("roberta"),
        model_type="xlm-roberta",
        architectures=(Architecture("XLMRobertaForMaskedLM", ("mlm",), ("mlm",)),),
    )
    known = [*maps.load_all(), added]
    monkeypatch.setattr(maps, "load_all", lambda: known)
    num_heads, width, num_layers = SHAPE
    config = transformers.XLMRobertaConfig(
        vocab_size=real_text.VOCAB,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        intermediate_size=4 * width,
        max_position_embeddings=LENGTH + 2,
        layer_norm_eps=1e-5,
    )
    model = transformers.XLMRobertaForMaskedLM(config).double().eval()
    save(peers.randomise(model, seed=0), "roberta", tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    row = real_text.batch("roberta", 0, length=LENGTH)["tokens"][:1, : LENGTH // 2]
    ours = token_logits(pretrained.load(tmp_path / "run"), row)
    theirs = model(input_ids=torch.tensor(row.astype(np.int64))).logits.detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def token_logits(opened: Any, tokens: np.ndarray) -> np.ndarray:
    """Scores of our net at every place of rows without padding."""
    net = opened.net
    count = len(tokens)
    batch = {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "lengths": jnp.full(count, tokens.shape[1]),
        "boundaries": jnp.full(count, tokens.shape[1]),
        "examples": jnp.arange(count),
    }

    def forward(model: Any) -> jax.Array:
        return model.token_logits(model(batch, train=False)[0])

    from flax import linen as nn

    return np.asarray(nn.apply(forward, net)({"params": opened.params}))


@pytest.mark.parametrize("system", ["bert", "roberta"])
def test_fill_mask(pretrained_runs: Runs, tmp_path, system: str) -> None:
    run = pretrained_runs(system)
    exporting.run(run, tmp_path / "out")
    opened = pretrained.load(run)
    pipe = transformers.pipeline("fill-mask", model=str(tmp_path / "out"), top_k=300)
    before, after = "bada ", " gedu dodo."
    found = pipe(f"{before}{pipe.tokenizer.mask_token}{after}")
    tokenizer = opened.tokenizer
    frame = tokenizer.frame()
    # The space before the mask belongs to it, as it would to the token.
    left, right = (tokenizer.encode(t) for t in (before.rstrip(), after))
    mask = tokenizer.special_ids["mask"]
    row = np.array([[*frame.begin, *left, mask, *right, *frame.end]])
    theirs = pipe.tokenizer(f"{before}{pipe.tokenizer.mask_token}{after}")["input_ids"]
    np.testing.assert_array_equal(row[0], theirs)
    place = int(np.nonzero(row[0] == mask)[0][0])
    chances = np.asarray(jax.nn.softmax(token_logits(opened, row)[0, place]))
    given = {answer["token"]: answer["score"] for answer in found}
    assert len(given) == 300
    np.testing.assert_allclose([given[i] for i in range(300)], chances, rtol=1e-4)


@pytest.mark.parametrize("system", ["gpt", "gpt2"])
def test_text_generation(pretrained_runs: Runs, tmp_path, system: str) -> None:
    run = pretrained_runs(system)
    exporting.run(run, tmp_path / "out")
    opened = pretrained.load(run)
    pipe = transformers.pipeline("text-generation", model=str(tmp_path / "out"))
    prompt = "bada gedu"
    found = pipe(prompt, max_new_tokens=6, do_sample=False, return_tensors=True)
    row = opened.tokenizer.encode(prompt).tolist()
    for _ in range(6):
        row.append(int(token_logits(opened, np.array([row]))[0, -1].argmax()))
    assert found[0]["generated_token_ids"] == row
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    theirs = model(input_ids=torch.tensor([row])).logits.detach().numpy()
    np.testing.assert_allclose(token_logits(opened, np.array([row])), theirs, rtol=1e-4, atol=1e-5)


KINDS = {"bert": "double", "roberta": "double", "gpt": "single", "gpt2": "single"}


@pytest.mark.parametrize("count", [3, 1])
@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_text_classification(pretrained_runs: Runs, tmp_path, system: str, count: int) -> None:
    """A fine-tuned run, which for GPT and GPT-2 has a bias that their class has not."""
    from scalelab.data.tokenizers import Tokenizer
    from scalelab.tasks.examples import assemble

    task = {} if count == 3 else {"task": "own", "labels": None, "regression": True}
    net, params = fine_tuned.make(
        pretrained_runs(system), tmp_path / "run", KINDS[system], count, **task
    )
    exporting.run(tmp_path / "run", tmp_path / "out")
    opened = pretrained.load(pretrained_runs(system))
    tokenizer = Tokenizer.load(tmp_path / "run/tokenizer")
    a = opened.system.ADAPTATION
    frame = Frame(*(tuple(map(tokenizer.token_id, part)) for part in (a.begin, a.between, a.end)))
    pairs = [("bada gedu", "dodo."), ("gedu", "bada [MASK] dodo gedu"), ("dodo", "x")]
    first, second = (tokenizer.encode_batch(texts) for texts in zip(*pairs, strict=True))
    made = assemble(first, second, frame, 60)
    length = int(np.diff(made["starts"]).max())
    rows = np.zeros((len(pairs), length), np.int32)
    for row, start, end in zip(rows, made["starts"], made["starts"][1:], strict=False):
        row[: end - start] = made["tokens"][start:end]
    batch = {
        "tokens": rows,
        "lengths": np.diff(made["starts"]).astype(np.int32),
        "boundaries": made["boundaries"],
        "examples": np.arange(len(pairs), dtype=np.int32),
    }
    scores, _ = net.apply({"params": params}, batch, train=False)
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)
    given = pipe([{"text": x, "text_pair": y} for x, y in pairs], batch_size=3)
    expected = np.asarray(scores if count == 1 else jax.nn.softmax(scores))
    labels = [pipe.model.config.id2label[i] for i in range(count)]
    found = [{answer["label"]: answer["score"] for answer in row} for row in given]
    np.testing.assert_allclose(
        [[row[label] for label in labels] for row in found], expected, rtol=1e-4, atol=1e-5
    )
