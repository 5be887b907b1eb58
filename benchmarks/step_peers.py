"""Steps of PyTorch on a class of transformers: as it comes, tuned, compiled.

Nothing here asks for JAX but `make`, which gives a side our weights.
"""

import time
from typing import Any

import numpy as np

from benchmarks import side_by_side
from benchmarks.step_case import ADAMW, LEARNING_RATE, Case, Ours

CLASSES = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt": "OpenAIGPTLMHeadModel",
}
CAUSAL = ("gpt2", "gpt")  # position t scores token t + 1


class Stock:
    """The class with its default attention and its own loss: every position through the head.

    clip_grad_norm_ and fused AdamW, on a batch that is masked already.

    Args:
      case: what is measured.
      batch: tensors by name; see `inputs`.
    """

    def __init__(self, case: Case, batch: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(case.threads)
        torch.manual_seed(0)
        self.model, self.batch = make_model(case), batch
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
        self.inputs = dict(batch)
        self.compute, self.compile_secs = self.forward, 0.0

    def forward(self) -> Any:
        """The loss of the batch."""
        return self.model(**self.inputs).loss

    def loss(self) -> float:
        """Of the batch, without dropout."""
        import torch

        self.model.eval()
        with torch.no_grad():
            return self.forward().item()

    def __call__(self, steps: int) -> None:
        """Takes steps."""
        import torch

        self.model.train()
        for _ in range(steps):
            self.compute().backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), ADAMW["clip_norm"])
            self.optimizer.step()
            self.optimizer.zero_grad()


class Tuned(Stock):
    """The head on the predicted positions alone, as ours."""

    def __init__(self, case: Case, batch: dict[str, Any]) -> None:
        super().__init__(case, batch)
        labels = self.inputs.pop("labels")
        self.pair_labels = self.inputs.pop("next_sentence_label", None)
        if case.system in CAUSAL:
            labels = labels.roll(-1, dims=1)
            labels[:, -1] = -100
        self.places = (labels.flatten() != -100).nonzero().flatten()
        self.targets = labels.flatten()[self.places]

    def forward(self) -> Any:
        """The loss of the batch."""
        import torch

        entropy = torch.nn.functional.cross_entropy
        made = self.model.base_model(**self.inputs)
        chosen = made[0].flatten(0, 1)[self.places]
        if self.pair_labels is None:
            return entropy(self.model.lm_head(chosen), self.targets)
        pairs = self.model.cls.seq_relationship(made[1])
        mlm = entropy(self.model.cls.predictions(chosen), self.targets)
        return mlm + entropy(pairs, self.pair_labels)


class Compiled(Tuned):
    """The tuned step, its loss and gradients through torch.compile."""

    def __init__(self, case: Case, batch: dict[str, Any]) -> None:
        import torch

        super().__init__(case, batch)
        self.compute = torch.compile(self.forward)
        begun = time.perf_counter()
        self.model.train()
        self.compute().backward()
        self.optimizer.zero_grad()
        self.compile_secs = time.perf_counter() - begun


KINDS = {"stock": Stock, "tuned": Tuned, "compiled": Compiled}


def make(kind: str, ours: Ours) -> Any:
    """A side of `kind` with our weights, on our masked batch."""
    import torch

    arrays = inputs(ours.case, ours.masked())
    batch = {name: torch.tensor(np.asarray(x, np.int64)) for name, x in arrays.items()}
    side = KINDS[kind](ours.case, batch)
    side_by_side.give_weights(side.model, ours.case.system, ours.state.params)
    return side


def make_model(case: Case) -> Any:
    """The class of transformers at the case's sizes."""
    import transformers

    num_heads, width, num_layers = case.sizes
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    config: dict[str, Any] = {
        "vocab_size": case.vocab_size,
        "hidden_size": width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": case.max_len,
    }
    if case.system in CAUSAL:
        rates = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
        config = {
            "vocab_size": case.vocab_size,
            "n_embd": width,
            "n_layer": num_layers,
            "n_head": num_heads,
            "n_positions": case.max_len,
            "bos_token_id": None,
            "eos_token_id": None,
        }
    elif case.system == "roberta":
        config |= {"layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
        config["max_position_embeddings"] += 2
    made = getattr(transformers, CLASSES[case.system])
    return made(made.config_class(**config, **dict.fromkeys(rates, case.dropout_rate)))


def inputs(case: Case, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A prepared batch as the class takes it."""
    labels = np.array(batch["tokens"])
    if case.system not in CAUSAL:
        labels = np.full(batch["tokens"].shape, -100)
        for row, chosen in enumerate(batch["mlm_weights"] > 0):
            labels[row, batch["mlm_positions"][row][chosen]] = batch["mlm_targets"][row][chosen]
    places = np.arange(labels.shape[1])
    made = {
        "input_ids": batch["tokens"],
        "attention_mask": places < batch["lengths"][:, None],
        "labels": labels,
    }
    if "nsp_labels" in batch:
        made["token_type_ids"] = places >= batch["boundaries"][:, None]
        made["next_sentence_label"] = batch["nsp_labels"]
    return made
