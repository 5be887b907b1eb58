"""What pads the batches of a GPT that was imported as a classifier and fine-tuned: safe in any."""

import pathlib

import glue_folder
import jax
import numpy as np
import pytest
from fine_tuned import prepare, values
from tokenizers import processors

from scalelab import objectives
from scalelab.interop import exporting, importing
from scalelab.records import run_folder

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import real_text  # noqa: E402
import transformers  # noqa: E402

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("system", peers.DECODERS)
def test_what_was_fine_tuned_from_it_answers_alike_in_batches(
    cache_dir: pathlib.Path, tmp_path: pathlib.Path, system: str
) -> None:
    """The import's config.json pads with an ordinary piece, its tokenizer with the end of texts."""
    data = glue_folder.write(tmp_path / "glue")
    model = peers.make(system, (3, 24, 2), 64, "classify", vocab_size=real_text.VOCAB, num_labels=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(real_text.tokenizer_dir(system))
    end = tokenizer.pad_token = "<|endoftext|>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", end],
        pair=["$A", "$B:1", end],
        special_tokens=[(end, tokenizer.convert_tokens_to_ids(end))],
    )
    for part in (model.float(), tokenizer):
        part.save_pretrained(tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), back := tmp_path / "back")
    run = prepare(back, "sst2", data, tmp_path / "sst2", **values(cache_dir, head__kind="single"))
    start = {"body": run.start.opened.params, "head": run.head}
    run.save(0, 1, start)
    run_folder.write_description(run.folder(0), run.describe(0))
    exporting.run(run.folder(0), tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = ["a", "the license of this", "\U0010ffff", "work \U0010ffff", "<unk>", "to " * 9]
    model.config.pad_token_id, kept = None, model.config.pad_token_id
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt")).logits for text in texts]
        model.config.pad_token_id = kept
        both = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    np.testing.assert_allclose(both, torch.cat(rows), rtol=1e-4, atol=1e-4)
    frame = run.tokenizer.frame()
    ids = [[*frame.begin, *run.tokenizer.encode(text), *frame.end] for text in texts]
    assert ids == tokenizer(texts)["input_ids"]
    lengths = np.array(list(map(len, ids)), np.int32)
    batch = {
        "tokens": np.array([row + [0] * (64 - len(row)) for row in ids], np.int32),
        "lengths": lengths,
        "examples": np.arange(len(ids), dtype=np.int32),
    }
    ctx = objectives.Pass(jax.random.key(0))
    ours = run.learner.net.apply({"params": start}, batch, ctx.hidden, train=False)
    np.testing.assert_allclose(ours, both, rtol=1e-4, atol=1e-4)
