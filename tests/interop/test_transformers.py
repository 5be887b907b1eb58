"""Both ways against PyTorch: an import computes what they compute, an export what we do."""

import copy
import dataclasses
import pathlib
import re
from collections.abc import Callable
from typing import Any

import fine_tuned
import jax
import numpy as np
import pytest
from damage import config, rename
from fine_tuned import KINDS
from flax import linen as nn
from safetensors.numpy import load_file

from scalelab import objectives, systems
from scalelab.data.tokenizers import Tokenizer
from scalelab.eval import token_scores
from scalelab.formats import Frame
from scalelab.interop import convert, exporting, importing, maps
from scalelab.interop.mapping import Architecture
from scalelab.interop.maps import bart
from scalelab.nn.heads import token_logits
from scalelab.tasks.examples import assemble
from scalelab.training import pretrained

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import real_text  # noqa: E402
import sides  # noqa: E402
import transformers  # noqa: E402

Runs = Callable[[str], pathlib.Path]
SHAPE, LENGTH = (3, 24, 2), 12
UNTIED = {"tie_word_embeddings": False}


def save(model: Any, system: str, folder: pathlib.Path, **more: Any) -> None:
    """Writes a model and a tokenizer as transformers does."""
    model.float().save_pretrained(folder, **more)
    transformers.AutoTokenizer.from_pretrained(real_text.tokenizer_dir(system)).save_pretrained(
        folder
    )


def apart(run: pathlib.Path, model: Any) -> float:
    """The largest difference of logits, in units of the largest; the peer computes in float64."""
    opened = pretrained.load(run)
    row = real_text.batch(opened.config.system, 0, length=LENGTH)["tokens"][:1, : LENGTH // 2]
    out = copy.deepcopy(model).double()(input_ids=torch.tensor(row.astype(np.int64)))
    logits = out.prediction_logits if hasattr(out, "prediction_logits") else out.logits
    return sides.relative(logits_of(opened, row), logits.detach().numpy())


HEADS = {"pretraining": {}, "classify": {}, "untied": UNTIED}
OTHERS = [  # classes that no other test has
    (family.system, a.name)
    for family in maps.load_all()
    if family.system in peers.CLASSES
    for a in family.architectures
    if a.name not in peers.CLASSES[family.system]
    if a.kind or not systems.load(family.system).HAS_SOURCE  # models that generate have own tests
]


@pytest.mark.parametrize(
    ("system", "head"), [*((system, head) for system in KINDS for head in HEADS), *OTHERS]
)
def test_there_and_back(tmp_path, system: str, head: str) -> None:
    """Tensors stay bit for bit, from one file or many; import and export score as the source."""
    more = HEADS.get(head, {"name": head})
    kind = "classify" if head == "classify" else "pretraining"
    model = peers.make(system, SHAPE, LENGTH, kind, vocab_size=real_text.VOCAB, **more)
    many = {"max_shard_size": "40KB"} if head == "pretraining" else {}
    theirs, run, ours, back = (tmp_path / name for name in ("theirs", "run", "ours", "back"))
    save(model, system, theirs, **many)
    assert (len(list(theirs.glob("*.safetensors"))) > 1) == bool(many)
    importing.run(str(theirs), run)
    exporting.run(run, ours)
    expected = {}
    for file in theirs.glob("*.safetensors"):
        expected |= load_file(file)
    found = load_file(ours / "model.safetensors")
    family, architecture = peers.architecture_of(model)
    for name in expected.keys() - found.keys():
        if any(re.fullmatch(pattern, name) for pattern in family.unused):
            del expected[name]
    for _, original in family.tied[1:] if architecture.untied else ():
        del expected[original]  # their untied head computes with the copy
    assert found.keys() == expected.keys()
    for row in family.body:
        # Nobody reads the rows before the first position.
        if row.transform in ("behind_padding", bart.POSITIONS):
            expected[row.tensors[0]][: convert.PADDING_ROWS] = 0
    if head == "classify" and peers.PEERS[system].needs_pad:  # a padding token that is safe
        table = next(row.tensors[0] for row in family.body if row.transform == "vocabulary")
        expected[table] = np.pad(expected[table], [(0, 1), (0, 0)])
    assert [n for n, x in expected.items() if not np.array_equal(x, found[n])] == []
    again = type(model).from_pretrained(ours).eval()
    before, after = type(model).from_pretrained(theirs).config.to_dict(), again.config.to_dict()
    for name in ("hidden_size", "n_embd", "type_vocab_size", "n_positions", "hidden_act", "afn",
        "layer_norm_eps", "max_position_embeddings", "architectures", "tie_word_embeddings",
    ):  # fmt: skip
        assert after.get(name) == before.get(name), name
    if architecture.kind is None:
        assert apart(run, model) < 1e-5 and apart(run, again) < 1e-5
        importing.run(str(ours), back)
        assert apart(back, model) < 1e-5
        own = [pretrained.load(x).params.get("output_embed") for x in (run, back)]
        jax.tree.map(np.testing.assert_array_equal, *own)
        assert (own[0] is not None) == (head == "untied")


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu_new"])
@pytest.mark.parametrize("system", KINDS)
def test_other_activations_and_epsilons(tmp_path, system: str, activation: str) -> None:
    """Import and export compute what the source does; RoBERTa's head has GELU always."""
    act, eps = (choice.key for choice in maps.load(system).choices)
    if activation not in (maps.load(system).choices[0].words or {}):
        activation = "relu"
    changed = {act: activation, eps: 0.03}
    model = peers.make(system, SHAPE, LENGTH, vocab_size=real_text.VOCAB, **changed)
    theirs, run, ours = (tmp_path / name for name in ("theirs", "run", "ours"))
    save(model, system, theirs)
    importing.run(str(theirs), run)
    assert pretrained.load(run).config.model.norm_epsilon == 0.03
    exporting.run(run, ours)
    again = type(model).from_pretrained(ours).eval()
    assert apart(run, model) < 1e-5 and apart(run, again) < 1e-5
    plain = peers.make(system, SHAPE, LENGTH, vocab_size=real_text.VOCAB)
    plain.load_state_dict(model.state_dict())
    assert apart(run, plain) > 5e-4  # the changes matter


@pytest.mark.parametrize("system", KINDS)
def test_a_second_table_that_config_json_does_not_name(tmp_path, system: str) -> None:
    save(peers.make(system, SHAPE, LENGTH, vocab_size=real_text.VOCAB, **UNTIED), system, tmp_path)
    config(tie_word_embeddings=True)(tmp_path)
    with pytest.raises(ValueError, match="differs from .*tie_word_embeddings"):
        importing.run(str(tmp_path), tmp_path / "tied")


@pytest.mark.parametrize("system", ["bert", "roberta"])
def test_a_bias_that_older_versions_stored_once(tmp_path, system: str) -> None:
    model = peers.make(system, SHAPE, LENGTH, vocab_size=real_text.VOCAB, **UNTIED)
    save(model, system, tmp_path / "theirs")
    (name, original) = maps.load(system).tied[1]
    bias = load_file(tmp_path / "theirs/model.safetensors")[name]
    rename(lambda n: original if n == name else n, **{original: bias})(tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    params = pretrained.load(tmp_path / "run").params
    assert np.array_equal(params["token_head"]["bias"], bias)


def test_a_family_is_added_by_a_map_alone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLM-RoBERTa has a class of its own, and no line of ours but this map, a RoBERTa's."""
    added = dataclasses.replace(
        maps.load("roberta"),
        model_type="xlm-roberta",
        architectures=(Architecture("XLMRobertaForMaskedLM", ("mlm",)),),
    )
    known = [*maps.load_all(), added]
    monkeypatch.setattr(maps, "load_all", lambda: known)
    num_heads, width, num_layers = SHAPE
    made = transformers.XLMRobertaConfig(
        vocab_size=real_text.VOCAB,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        intermediate_size=4 * width,
        max_position_embeddings=LENGTH + 2,
        layer_norm_eps=1e-5,
    )
    model = peers.randomise(transformers.XLMRobertaForMaskedLM(made).double().eval(), seed=0)
    save(model, "roberta", tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    assert apart(tmp_path / "run", model) < 1e-5


def logits_of(opened: Any, tokens: np.ndarray) -> np.ndarray:
    """Scores of rows without padding: of tokens, or else of replacement or pairs."""
    batch = token_scores.pad(tokens, tokens.shape[1], len(tokens))

    def forward(model: Any) -> jax.Array:
        hidden = model(batch, train=False)[0]
        if opened.predicts:
            return token_logits(model, hidden)
        heads = objectives.load(opened.terms[0].name).HEADS
        return model.replaced_logits(hidden) if "replaced" in heads else model.pair_logits(hidden)

    return np.asarray(nn.apply(forward, opened.net)({"params": opened.params}))


@pytest.mark.parametrize("system", peers.DECODERS)
def test_text_generation(pretrained_runs: Runs, tmp_path, system: str) -> None:
    run = pretrained_runs(system)
    exporting.run(run, tmp_path / "out")
    opened = pretrained.load(run)
    pipe = transformers.pipeline("text-generation", model=str(tmp_path / "out"))
    prompt = "bada gedu"
    found = pipe(prompt, max_new_tokens=6, do_sample=False, return_tensors=True)
    row = opened.tokenizer.encode(prompt).tolist()
    for _ in range(6):
        row.append(int(logits_of(opened, np.array([row]))[0, -1].argmax()))
    assert found[0]["generated_token_ids"] == row
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    theirs = model(input_ids=torch.tensor([row])).logits.detach().numpy()
    np.testing.assert_allclose(logits_of(opened, np.array([row])), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [3, 1])
@pytest.mark.parametrize("system", KINDS)
def test_text_classification(pretrained_runs: Runs, tmp_path, system: str, count: int) -> None:
    """A fine-tuned run, which for GPT and GPT-2 has a bias that their class has not."""
    task = {} if count == 3 else {"task": "own", "labels": None, "regression": True}
    net, params = fine_tuned.make(
        pretrained_runs(system), tmp_path / "run", KINDS[system], count, **task
    )
    exporting.run(tmp_path / "run", tmp_path / "out")
    tokenizer, a = Tokenizer.load(tmp_path / "run/tokenizer"), systems.load(system).ADAPTATION
    frame = Frame(*(tuple(map(tokenizer.token_id, part)) for part in (a.begin, a.between, a.end)))
    pairs = [("bada gedu", "dodo."), ("gedu", "bada [MASK] dodo gedu"), ("dodo", "x")]
    first, second = (tokenizer.encode_batch(texts) for texts in zip(*pairs, strict=True))
    made = assemble(first, second, frame, 60)
    rows = np.split(made["tokens"], made["tokens_starts"][1:-1])
    batch = token_scores.pad(rows, max(map(len, rows)), len(pairs))
    batch["second_starts"] = made["second_starts"]
    ctx = objectives.Pass(jax.random.key(0))
    scores = net.apply({"params": params}, batch, ctx.hidden, train=False)
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)
    given = pipe([{"text": x, "text_pair": y} for x, y in pairs], batch_size=3)
    expected = np.asarray(scores if count == 1 else jax.nn.softmax(scores))
    labels = [pipe.model.config.id2label[i] for i in range(count)]
    found = [{answer["label"]: answer["score"] for answer in row} for row in given]
    np.testing.assert_allclose(
        [[row[label] for label in labels] for row in found], expected, rtol=1e-4, atol=1e-5
    )
