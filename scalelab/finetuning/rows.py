"""Optimizer moments for only those rows of the token table that a task's texts name.

A row that no text names never has a gradient, so AdamW moves it by weight decay alone, and all such
rows by the same factor. A row of ones is trained beside the named ones and becomes that factor. A
step then updates some thousand rows where the table has tens of thousands, which on CPU is most of
what a small model's step spends on its update.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from scalelab.finetuning.step import Params
from scalelab.tasks.examples import TaskExamples

# Updates of a parameter that must be saved for it to pay: each saves some 2 ns on two cores, and
# the programs of a table of another size take half a minute to compile.
WORTH = 1.5e10
MULTIPLE = 128


@dataclasses.dataclass(frozen=True, eq=False)
class NamedRows:
    """The named rows of the table of `num_rows` tokens at `path`: ids [K], ascending."""

    ids: np.ndarray
    num_rows: int
    path: str

    @property
    def size(self) -> int:
        """Rows of the narrow table: the named ones, then at least one row of ones."""
        return -(-(len(self.ids) + 1) // MULTIPLE) * MULTIPLE

    @functools.cached_property
    def _places(self) -> np.ndarray:
        places = np.zeros(self.num_rows, np.int32)
        places[self.ids] = np.arange(len(self.ids))
        return places

    def renumber_ids(self, ids: Mapping[str, int]) -> dict[str, int]:
        """Returns the row in the narrow table of each special token, by role; all must be named."""
        return {role: int(self._places[i]) for role, i in ids.items()}

    def renumber(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a batch whose tokens are rows of the narrow table."""
        return batch | {"tokens": self._places[batch["tokens"]]}

    def narrow(self, params: Params) -> Params:
        """Returns parameters with the narrow table, [size, D]."""
        table = self.table(params)
        ones = jnp.ones((self.size - len(self.ids), table.shape[1]), table.dtype)
        return self._with_table(params, jnp.concatenate([table[self.ids], ones]))

    def widen(self, params: Params, first: np.ndarray) -> Params:
        """Returns parameters with the whole table.

        Args:
          params: with the narrow table [size, D]: the named rows, then a factor of all others.
          first: [V, D], the table at the beginning.
        """
        narrow = self.table(params)
        table = jnp.asarray(first) * narrow[len(self.ids)]
        return self._with_table(params, table.at[self.ids].set(narrow[: len(self.ids)]))

    def table(self, params: Params) -> jax.Array:
        """Returns the table [V, E] of {"body", "head"}."""
        return flatten_dict(params, sep="/")[self.path]

    def _with_table(self, params: Params, table: jax.Array) -> Params:
        return unflatten_dict(flatten_dict(params, sep="/") | {self.path: table}, sep="/")


def find(
    examples: list[TaskExamples], path: str, num_rows: int, width: int, num_steps: int,
    *, named: Collection[int] = (),
) -> NamedRows | None:  # fmt: skip
    """Finds the table rows in use; returns None if training only these would save too little.

    Args:
      examples: all splits; the rows of their tokens are in use.
      path: the token table.
      num_rows: its rows.
      width: its columns.
      num_steps: steps of the fine-tuning.
      named: ids that are in use without them, such as special tokens.
    """
    if float(num_steps) * width * num_rows < WORTH:
        return None
    counts = sum(np.bincount(e.rows.arrays["tokens"], minlength=num_rows) for e in examples)
    counts[list(named)] += 1
    rows = NamedRows(np.flatnonzero(counts), num_rows, path)
    saved = float(num_steps) * width * (num_rows - rows.size)
    return rows if saved >= WORTH else None
