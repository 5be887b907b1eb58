"""The peer of benchmarks.finetune: a loop like `run_glue`'s, in `transformers` and PyTorch."""

from typing import Any

import numpy as np


class Peer:
    """Fine-tuning as `run_glue` does it, in float32 on the CPU.

    Args:
      run: a finetuning.run.TaskRun, for the shape, the texts and the numbers of the recipe.
      threads: how many PyTorch uses.
    """

    def __init__(self, run: Any, threads: int) -> None:
        import torch
        import transformers

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
        optim = run.config.optim
        decayed, others = [], []
        for name, parameter in self.model.named_parameters():
            plain = name.endswith("bias") or "LayerNorm" in name
            (others if plain else decayed).append(parameter)
        groups = [
            {"params": decayed, "weight_decay": optim.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        betas = (optim.beta1, optim.beta2)
        self.optimizer = torch.optim.AdamW(
            groups, lr=optim.learning_rate, betas=betas, eps=optim.eps, fused=True
        )
        warmup = round(optim.warmup_rate * run.num_steps)
        self.schedule = transformers.get_linear_schedule_with_warmup(
            self.optimizer, warmup, run.num_steps
        )
        self.collate = transformers.DataCollatorWithPadding(self.tokenizer)
        self.train_rows = self.encode(run.splits.train)
        self.dev_rows = [
            row for records in run.splits.dev.values() if records for row in self.encode(records)
        ]

    def encode(self, records: Any) -> list[dict[str, Any]]:
        """Tokenises records; they are padded batch by batch."""
        made = self.tokenizer(*records.texts, truncation=True, max_length=self.run.config.max_len)
        labels = records.labels.tolist()
        return [{k: made[k][i] for k in made} | {"label": labels[i]} for i in range(len(labels))]

    def loader(self, rows: list[dict[str, Any]], size: int, shuffle: bool) -> Any:
        """Batches of rows, each padded to its longest."""
        import torch

        return torch.utils.data.DataLoader(rows, size, shuffle=shuffle, collate_fn=self.collate)

    def train(self, ids: np.ndarray) -> dict[str, int]:
        """Takes the steps that these examples make; returns real tokens and computed positions."""
        import torch

        self.model.train()
        rows = [self.train_rows[i] for i in ids]
        total, positions = torch.zeros(()), 0
        for batch in self.loader(rows, self.run.config.batch_size, shuffle=True):
            loss = self.model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(
                self.model.parameters(), self.run.config.optim.clip_norm or float("inf")
            )
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            total += loss.detach()
            positions += batch["input_ids"].numel()
        total.item()
        return {"tokens": sum(len(row["input_ids"]) for row in rows), "positions": positions}

    def evaluate(self) -> int:
        """Scores the dev sets; returns how many examples they have."""
        import torch

        self.model.eval()
        outputs = []
        with torch.no_grad():
            size = self.run.config.machine.eval_batch_size
            for batch in self.loader(self.dev_rows, size, shuffle=False):
                outputs.append(self.model(**batch).logits)
        return len(torch.cat(outputs).numpy())
