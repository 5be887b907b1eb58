"""Speed of a training step of BERT, beside `transformers` and PyTorch.

  python -m benchmarks.train_step [--shape=12x768x12] [--batch_size=8] [--length=128] [--steps=2]
      [--repeats=5] [--threads=2] [--json=FILE] [--quick]

A step is forward, backward and update: MLM and NSP on a batch without padding, 15% of the tokens
predicted, dropout 0.1, clipping, AdamW, in float32 on so many threads. Ours is the step that a
training runs, masking included; its head scores only the positions that are predicted. The peer is
BertForPreTraining with its default attention and its own loss, clip_grad_norm_ and fused AdamW; it
is given batches that are masked already. Both start from the same weights, on the same tokens; that
without dropout their losses are equal is checked. Compiling stands apart.

Alternately in one process: ours, the peer, ours, ...; a repetition is so many steps; medians of the
repetitions. Measure on a machine that does nothing else: PyTorch's threads wait spinning for each
other.

Target: base shape, at least 1.2x the peer.
"""

import argparse
import collections
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import side_by_side
from benchmarks.side_by_side import BUSY, pin
from scalelab import environment

SYSTEM, VOCAB_SIZE = "bert", 30_522
DROPOUT_RATE, MASK_RATE, LEARNING_RATE = 0.1, 0.15, 1e-4
ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0}
QUICK = {"shape": "2x8x2", "vocab_size": 97, "batch_size": 4, "length": 16, "repeats": 2}


class Ours:
    """The step of scalelab.train, on one batch over and over.

    Args:
      arguments: the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        import jax

        from scalelab import objectives, sharding, state, step, systems
        from scalelab.optim import adamw

        module = systems.load(SYSTEM)
        num_heads, width, num_layers = map(int, arguments.shape.split("x"))
        net = module.build(
            num_heads=num_heads,
            width=width,
            num_layers=num_layers,
            ffn_width=4 * width,
            vocab_size=arguments.vocab_size,
            max_len=max(512, arguments.length),
            dropout_rate=DROPOUT_RATE,
        )
        special_ids = {role: i for i, (role, _) in enumerate(module.SPECIAL_TOKENS)}
        sizes = {"vocab_size": arguments.vocab_size, "special_ids": special_ids}
        self.objectives = [
            objectives.load(name).make(**sizes, mask_rate=MASK_RATE) for name in module.OBJECTIVES
        ]
        self.batch = make_batch(arguments, special_ids)
        self.key = jax.random.key(1)
        mesh, tx = sharding.make_mesh(), adamw.adamw(**ADAMW)
        self.state, placed = state.create(
            net, self.objectives, tx, max_len=arguments.length, seed=0, mesh=mesh
        )
        begun = time.perf_counter()
        made = step.make_train_step(net, self.objectives, tx)
        self.run = step.compile_train(made, mesh, placed, self.state, self.batch)
        self.compile_secs = time.perf_counter() - begun
        self.eval_step = step.make_eval_step(net, self.objectives)

    def masked(self) -> dict[str, np.ndarray]:
        """The batch as the objectives prepare it."""
        import jax

        from scalelab import state

        masks = state.named_key(self.key, "mask")
        return jax.device_get(state.prepare(self.batch, self.objectives, masks))

    def loss(self) -> float:
        """Of the masked batch, without dropout."""
        import jax

        found = jax.jit(self.eval_step)(self.state.params, self.batch, self.key)
        return sum(
            float(total / weight) for k, (total, weight) in found.items() if k.endswith("_loss")
        )

    def __call__(self, steps: int) -> None:
        """Takes steps, and waits for the last."""
        import jax

        for _ in range(steps):
            self.state, _ = self.run(self.state, self.batch, np.float32(LEARNING_RATE))
        jax.block_until_ready(self.state)


class Peer:
    """BertForPreTraining in a plain loop, from the weights that ours has.

    Args:
      ours: gives weights and the masked batch.
      arguments: the command line.
    """

    def __init__(self, ours: Ours, arguments: argparse.Namespace) -> None:
        import torch
        import transformers

        torch.set_num_threads(arguments.threads)
        torch.manual_seed(0)
        num_heads, width, num_layers = map(int, arguments.shape.split("x"))
        self.model = transformers.BertForPreTraining(
            transformers.BertConfig(
                vocab_size=arguments.vocab_size,
                hidden_size=width,
                num_hidden_layers=num_layers,
                num_attention_heads=num_heads,
                intermediate_size=4 * width,
                max_position_embeddings=max(512, arguments.length),
                hidden_dropout_prob=DROPOUT_RATE,
                attention_probs_dropout_prob=DROPOUT_RATE,
            )
        )
        side_by_side.give_weights(self.model, SYSTEM, ours.state.params)
        plain = [p for p in self.model.parameters() if p.ndim == 1]
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": ADAMW["weight_decay"]},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=LEARNING_RATE,
            betas=(ADAMW["beta1"], ADAMW["beta2"]),
            eps=ADAMW["eps"],
            fused=True,
        )
        self.inputs = {
            name: torch.tensor(np.asarray(x, np.int64)) for name, x in inputs(ours.masked()).items()
        }

    def loss(self) -> float:
        """Of the batch, without dropout."""
        import torch

        self.model.eval()
        with torch.no_grad():
            return self.model(**self.inputs).loss.item()

    def __call__(self, steps: int) -> None:
        """Takes steps."""
        import torch

        self.model.train()
        for _ in range(steps):
            self.model(**self.inputs).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), ADAMW["clip_norm"])
            self.optimizer.step()
            self.optimizer.zero_grad()


def make_batch(arguments: argparse.Namespace, special_ids: dict[str, int]) -> dict[str, np.ndarray]:
    """Random tokens, two segments in each row, as the program's own batches have them."""
    rng = np.random.default_rng(0)
    size, length = arguments.batch_size, arguments.length
    tokens = rng.integers(len(special_ids), arguments.vocab_size, (size, length), np.int32)
    tokens[:, 0] = special_ids["cls"]
    tokens[:, [length // 2 - 1, length - 1]] = special_ids["sep"]
    full = np.full(size, length, np.int32)
    return {
        "tokens": tokens,
        "lengths": full,
        "boundaries": full // 2,
        "examples": np.arange(size, dtype=np.int32),
        "nsp_labels": np.arange(size, dtype=np.int32) % 2,
        "num_bytes": full,
        "num_text_tokens": full,
    }


def inputs(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A prepared batch as BertForPreTraining takes it."""
    labels = np.full(batch["tokens"].shape, -100)
    for row, chosen in enumerate(batch["mlm_weights"] > 0):
        labels[row, batch["mlm_positions"][row][chosen]] = batch["mlm_targets"][row][chosen]
    places = np.arange(labels.shape[1])
    return {
        "input_ids": batch["tokens"],
        "attention_mask": places < batch["lengths"][:, None],
        "token_type_ids": places >= batch["boundaries"][:, None],
        "labels": labels,
        "next_sentence_label": batch["nsp_labels"],
    }


def summary(calls: list[tuple[float, float]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians over the repetitions, and the seconds of a step of each."""
    wall, cpu = (statistics.median(times) / arguments.steps for times in zip(*calls, strict=True))
    return {
        "step_secs": wall,
        "step_cpu_secs": cpu,
        "tokens_per_sec": arguments.batch_size * arguments.length / wall,
        "each": [secs / arguments.steps for secs, _ in calls],
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs both, alternately."""
    import jax

    from scalelab import flops

    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    left_out = side_by_side.peer_left_out()
    ours = Ours(arguments)
    sides = {"ours": ours} if left_out else {"ours": ours, "peer": Peer(ours, arguments)}
    found: dict[str, Any] = {"parameters": flops.count_parameters(ours.state.params)}
    if not left_out:
        found["losses"] = {name: side.loss() for name, side in sides.items()}
        if abs(found["losses"]["ours"] / found["losses"]["peer"] - 1) > 1e-4:
            raise SystemExit(f"the two are not the same net: losses {found['losses']}")
        found["peer_versions"] = side_by_side.peer_versions()
    for side in sides.values():
        side(1)
    calls = collections.defaultdict(list)
    for _ in range(arguments.repeats):
        for name, side in sides.items():
            calls[name].append(side_by_side.timed(side, arguments.steps))
    found |= {name: summary(each, arguments) for name, each in calls.items()}
    if not left_out:
        found["ratio"] = found["peer"]["step_secs"] / found["ours"]["step_secs"]
    names = ("shape", "vocab_size", "batch_size", "length", "steps", "repeats", "threads")
    return (
        found
        | {name: getattr(arguments, name) for name in names}
        | {
            "compile_secs": ours.compile_secs,
            "device": jax.devices()[0].device_kind,
            "load": load,
            "peer_left_out": left_out,
        }
    )


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"\n{SYSTEM} {found['shape']}, {found['vocab_size']:,} tokens, {found['parameters']:,}"
        f" parameters, float32\n{found['device']}, {found['threads']} thread(s), load"
        f" {found['load']:.1f} at the start{BUSY if found['load'] > 0.5 else ''}\n"
        f"batches of {found['batch_size']} x {found['length']}; {found['repeats']} repetitions of"
        f" {found['steps']} steps\n"
    )
    columns = ("a step", "CPU time", "tokens/s", "ratio")
    print(f"{'training':8}" + "".join(f"{column:>13}" for column in columns))
    for name in ("ours", "peer"):
        if name in found:
            made = found[name]
            cells = [
                f"{made['step_secs'] * 1e3:,.1f} ms",
                f"{made['step_cpu_secs'] * 1e3:,.1f} ms",
                f"{made['tokens_per_sec']:,.0f}",
                f"{found['ratio']:.2f}x" if name == "ours" and "ratio" in found else "",
            ]
            print(f"{name:8}" + "".join(f"{cell:>13}" for cell in cells).rstrip())
    print(f"\ncompiled in {found['compile_secs']:.1f} s")
    if found["peer_left_out"]:
        print(f"the peer is left out: {found['peer_left_out']}")
    else:
        losses = found["losses"]
        print(
            f"peer: {found['peer_versions']}; losses without dropout: {losses['ours']:.6f} and"
            f" {losses['peer']:.6f}"
        )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="12x768x12", help="heads x width x layers")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of an example")
    parser.add_argument("--steps", type=int, default=2, help="a repetition")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of both, on CPU")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there too")
    parser.add_argument("--quick", action="store_true", help="a tiny net and short examples")
    parser.set_defaults(vocab_size=VOCAB_SIZE)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        vars(arguments).update(QUICK)
    return arguments


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(arguments)
    report(found)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asked = parse()
    environment.keep_freed_memory()
    pin(asked.threads)
    main(asked)
