"""Fine-tuning, evaluation and decoding on 1 and 4 simulated devices; a program.

  python mesh_program.py GPT2_RUN BERT_RUN CACHE_DIR OUT

Asserts that every layout of the devices gives what one device gives, to 1e-5.
"""

import functools
import os
import pathlib
import sys
from typing import Any

LAYOUTS = ((1, 1, 1), (4, 1, 1), (1, 2, 2))  # data, fsdp, tensor


def fine_tune(run: str, cache_dir: str, folder: pathlib.Path) -> dict[str, Any]:
    """Two seeds of GPT-2: both orders, the auxiliary loss, a padded batch."""
    import json

    import test_finetune as tests

    from scalelab import finetune
    from scalelab.finetuning import warm_start
    from scalelab.finetuning.run import TaskRun
    from scalelab.tasks.task import Splits, load_task
    from scalelab.training.pretrained import load_trained

    task = load_task("mrpc")
    splits = Splits(tests.records(task, 9, 0), {"dev": tests.records(task, 7, 1)}, {})
    small = {"batch_size": 6, "machine__eval_batch_size": 5, "lm_weight": 0.5, "epochs": 1.0}
    config = tests.config(pathlib.Path(cache_dir), **small)
    prepared = TaskRun(task, splits, warm_start.open_start(run), config, folder)
    for seed in (0, 1):
        finetune.train([prepared], seed, folder)
    results = [json.loads((folder / f"seed{k}/result.json").read_text()) for k in (0, 1)]
    params = [load_trained(folder / f"seed{k}") for k in (0, 1)]
    outputs = prepared.predict_with(params[1], prepared.dev["dev"])
    return {"params": params, "outputs": outputs, "losses": [r["train_loss"] for r in results]}


def evaluate(run: str) -> dict[str, Any]:
    """Log-likelihood of documents, and continuations of prompts, greedy, drawn and searched."""
    import numpy as np

    from scalelab.decode import beam, loop, stepper
    from scalelab.decode.choose import Rules
    from scalelab.eval import likelihood, placement
    from scalelab.training import pretrained

    opened = pretrained.load(run)
    placed = placement.place(opened)
    tokens = np.random.default_rng(0).integers(5, 300, 40).astype(np.int32)
    starts = np.array([0, 11, 30, 40])
    reading = likelihood.Reading((), (), None, 12, 5)
    nats = likelihood.score(placed, tokens, starts, reading, batch_size=2)
    prompts = [tokens[k : k + 3 + k % 2] for k in range(4)]
    made = stepper.prepare(placed.net, placed.params)
    sizes = dict(max_new_tokens=4, max_len=64, end_token=None, rows=placed.rows)
    keys = loop.text_keys(0, prompts, range(4))
    found = {"nats": nats}
    for name, rules in (("greedy", Rules()), ("drawn", Rules(temperature=1.0))):
        texts = loop.generate(made, prompts, rules, keys=keys, **sizes)
        found[name] = [text.tokens for text in texts]
    best = beam.search(made, prompts, num_beams=2, **sizes)
    found["searched"] = [text.tokens for texts in best for text in texts]
    return found


def fill(run: str) -> list[float]:
    """Probabilities of fillings of three texts."""
    from scalelab import fill_mask
    from scalelab.training import pretrained

    opened = pretrained.load(run)
    texts = ("bada [MASK] gedu", "[MASK] dodo [MASK].", "[MASK]")
    rows = [fill_mask.encode(text, opened) for text in texts]
    return [f.probability for masks in fill_mask.fill(opened, rows, 3) for m in masks for f in m]


def order(run: str) -> dict[str, tuple[float, float]]:
    """Losses on text as it is and shuffled."""
    from scalelab.eval import word_order

    return word_order.losses(pathlib.Path(run), 9, 0)


def main(gpt2: str, bert: str, cache_dir: str, out: str) -> None:
    flags = f"--xla_force_host_platform_device_count=4 {os.environ.get('XLA_FLAGS', '')}"
    os.environ["XLA_FLAGS"] = flags
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    from scalelab import sharding
    from scalelab.tasks import batches

    batches.BUCKETS = (32,)

    def make_mesh(layout: tuple[int, ...], **_: Any) -> Any:
        devices = np.asarray(jax.devices()[: int(np.prod(layout))]).reshape(layout)
        return jax.sharding.Mesh(devices, sharding.MESH_AXES)

    expected: Any = None
    for layout in LAYOUTS:
        sharding.make_mesh = functools.partial(make_mesh, layout)
        folder = pathlib.Path(out) / "x".join(map(str, layout))
        found = {
            "fine_tune": fine_tune(gpt2, cache_dir, folder),
            "evaluate": evaluate(gpt2),
            "fill": fill(bert),
            "order": order(bert),
        }
        expected = expected or found
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
        print(layout, "equal", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
