"""The peers in PyTorch: classes of `transformers` with our weights, on CPU in float32.

`make_step` gives the sides of benchmarks.step, `Finetuning` a loop like that of `run_glue`, and
`Decoding` the `generate` of GPT-2.
"""

import time
from typing import Any

import numpy as np
import torch
import transformers

CLASSES = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt": "OpenAIGPTLMHeadModel",
}
CAUSAL = ("gpt2", "gpt")  # position t scores token t + 1


def describe_versions() -> str:
    """Returns the versions of what the peers are made with."""
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def copy_weights(model: Any, system: str, params: Any) -> None:
    """Copies our parameters into a class of transformers of the same net.

    Args:
      model: the class's instance, of as many tokens as ours.
      system: the family.
      params: ours.
    """
    from scalelab.interop import convert, maps
    from scalelab.interop.transforms import Sizes

    family, config = maps.load(system), model.config
    name = type(model).__name__
    rows = family.rows(next(a for a in family.architectures if a.name == name))
    sizes = Sizes(
        config.num_attention_heads, config.num_hidden_layers, config.vocab_size, config.vocab_size
    )
    found = convert.to_theirs(rows, convert.flatten(params), sizes)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(torch.tensor(found.pop(name)))
    assert not found, found.keys()


def make_adamw(model: Any, optim: Any) -> Any:
    """Makes fused AdamW with the numbers of a config; biases and norms do not decay."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": decayed, "weight_decay": optim.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    betas = (optim.beta1, optim.beta2)
    return torch.optim.AdamW(groups, lr=optim.learning_rate, betas=betas, eps=optim.eps, fused=True)


# --- Pre-training steps ---------------------------------------------------------------------------


class Stock:
    """The class with its default attention and its own loss: every position through the head.

    Args:
      run: the abstract run.
      batch: tensors by name; see `class_inputs`.
    """

    def __init__(self, run: Any, batch: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.model, self.inputs, self.run = make_model(run), dict(batch), run
        self.optimizer = make_adamw(self.model, run.config.optim)
        self.compute, self.compile_secs = self.forward, 0.0

    def forward(self) -> Any:
        """Returns the loss of the batch."""
        return self.model(**self.inputs).loss

    def loss(self) -> float:
        """Returns the loss of the batch without dropout."""
        self.model.eval()
        with torch.no_grad():
            return self.forward().item()

    def __call__(self, steps: int) -> None:
        """Takes steps."""
        self.model.train()
        clip_norm = self.run.config.optim.clip_norm
        for _ in range(steps):
            self.compute().backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()


class Tuned(Stock):
    """The head on the predicted positions alone, as ours."""

    def __init__(self, run: Any, batch: dict[str, Any]) -> None:
        super().__init__(run, batch)
        labels = self.inputs.pop("labels")
        self.pair_labels = self.inputs.pop("next_sentence_label", None)
        if run.config.system in CAUSAL:
            labels = labels.roll(-1, dims=1)
            labels[:, -1] = -100
        self.places = (labels.flatten() != -100).nonzero().flatten()
        self.targets = labels.flatten()[self.places]

    def forward(self) -> Any:
        """Returns the loss of the batch."""
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

    def __init__(self, run: Any, batch: dict[str, Any]) -> None:
        super().__init__(run, batch)
        self.compute = torch.compile(self.forward)
        begun = time.perf_counter()
        self.model.train()
        self.compute().backward()
        self.optimizer.zero_grad()
        self.compile_secs = time.perf_counter() - begun


def make_step(kind: str, ours: Any, threads: int) -> Stock:
    """Makes a side of benchmarks.step with our weights, on our masked batch.

    Args:
      kind: "stock", "tuned" or "compiled".
      ours: a step.Ours.
      threads: of PyTorch.
    """
    torch.set_num_threads(threads)
    run = ours.plan
    arrays = class_inputs(run.config.system, ours.masked_batch())
    batch = {name: torch.tensor(np.asarray(x, np.int64)) for name, x in arrays.items()}
    side = {"stock": Stock, "tuned": Tuned, "compiled": Compiled}[kind](run, batch)
    copy_weights(side.model, run.config.system, ours.state.params)
    return side


def make_model(run: Any) -> Any:
    """Makes the class of transformers at a run's sizes."""
    net, system = run.config.net, run.config.system
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    config: dict[str, Any] = {
        "vocab_size": run.config.tokenizer.vocab_size,
        "hidden_size": net.width,
        "num_hidden_layers": net.num_layers,
        "num_attention_heads": net.num_heads,
        "intermediate_size": 4 * net.width,
        "max_position_embeddings": net.max_len,
    }
    if system in CAUSAL:
        rates = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
        config = {
            "vocab_size": run.config.tokenizer.vocab_size,
            "n_embd": net.width,
            "n_layer": net.num_layers,
            "n_head": net.num_heads,
            "n_positions": net.max_len,
            "bos_token_id": None,
            "eos_token_id": None,
        }
    elif system == "roberta":
        config |= {"layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
        config["max_position_embeddings"] += 2
    made = getattr(transformers, CLASSES[system])
    return made(made.config_class(**config, **dict.fromkeys(rates, net.dropout_rate)))


def class_inputs(system: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a prepared batch as the class of transformers takes it."""
    labels = np.array(batch["tokens"])
    if system not in CAUSAL:
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


# --- Fine-tuning ----------------------------------------------------------------------------------


class Finetuning:
    """Fine-tuning as `run_glue` does it: padding to the longest of a batch, fused AdamW, clipping.

    Args:
      run: a finetuning.run.TaskRun, for the shape, the texts and the numbers of the recipe.
      threads: of PyTorch.
    """

    def __init__(self, run: Any, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.run = run
        net, opened = run.start.opened.config.net, run.start.opened
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(opened.tokenizer_dir)
        self.model = transformers.BertForSequenceClassification(
            transformers.BertConfig(
                vocab_size=opened.config.tokenizer.vocab_size,
                hidden_size=net.width,
                num_hidden_layers=net.num_layers,
                num_attention_heads=net.num_heads,
                intermediate_size=net.ffn_width or 4 * net.width,
                max_position_embeddings=net.max_len,
                hidden_dropout_prob=run.config.dropout_rate,
                attention_probs_dropout_prob=run.config.dropout_rate,
                num_labels=run.task.num_outputs,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        )
        self.optimizer = make_adamw(self.model, run.config.optim)
        warmup = round(run.config.optim.warmup_rate * run.num_steps)
        self.schedule = transformers.get_linear_schedule_with_warmup(
            self.optimizer, warmup, run.num_steps
        )
        self.collate = transformers.DataCollatorWithPadding(self.tokenizer)
        self.train_rows = self.encode(run.splits.train)
        self.dev_rows = [
            row for records in run.splits.dev.values() if records for row in self.encode(records)
        ]

    def encode(self, records: Any) -> list[dict[str, Any]]:
        """Tokenises records; batches are padded when they are made."""
        made = self.tokenizer(*records.texts, truncation=True, max_length=self.run.config.max_len)
        labels = records.labels.tolist()
        return [{k: made[k][i] for k in made} | {"label": labels[i]} for i in range(len(labels))]

    def loader(self, rows: list[dict[str, Any]], size: int, shuffle: bool) -> Any:
        """Batches rows, each batch padded to its longest."""
        return torch.utils.data.DataLoader(rows, size, shuffle=shuffle, collate_fn=self.collate)

    def num_tokens(self, ids: np.ndarray) -> int:
        """Counts the real tokens of training examples."""
        return sum(len(self.train_rows[i]["input_ids"]) for i in ids)

    def train(self, ids: np.ndarray) -> None:
        """Takes the steps that these examples make."""
        self.model.train()
        clip_norm, total = self.run.config.optim.clip_norm or float("inf"), torch.zeros(())
        rows = [self.train_rows[i] for i in ids]
        for batch in self.loader(rows, self.run.config.batch_size, shuffle=True):
            loss = self.model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            total += loss.detach()
        total.item()

    def evaluate(self) -> int:
        """Scores the dev sets; returns how many examples they have."""
        self.model.eval()
        size = self.run.config.machine.eval_batch_size
        with torch.no_grad():
            batches = self.loader(self.dev_rows, size, shuffle=False)
            return len(torch.cat([self.model(**batch).logits for batch in batches]).numpy())


# --- Decoding -------------------------------------------------------------------------------------


class Decoding:
    """Greedy `generate` of GPT2LMHeadModel, with its key-value cache.

    Args:
      shape: heads, width, layers.
      sizes: vocab_size and max_len.
      params: our parameters, which it gets.
      prompts: [B, P].
      threads: of PyTorch.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        sizes: dict[str, int],
        params: Any,
        prompts: np.ndarray,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        num_heads, width, num_layers = shape
        config = transformers.GPT2Config(
            vocab_size=sizes["vocab_size"],
            n_embd=width,
            n_layer=num_layers,
            n_head=num_heads,
            n_positions=sizes["max_len"],
            bos_token_id=None,
            eos_token_id=None,
        )
        self.model = transformers.GPT2LMHeadModel(config).eval()
        copy_weights(self.model, "gpt2", params)
        self.prompts = torch.tensor(prompts, dtype=torch.long)

    def __call__(self, new_tokens: int) -> np.ndarray:
        """Returns new tokens [B, new_tokens]."""
        with torch.inference_mode():
            found = self.model.generate(
                self.prompts,
                attention_mask=torch.ones_like(self.prompts),
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
        return found[:, self.prompts.shape[1] :].numpy()
