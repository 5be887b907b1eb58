"""Embeddings, and their sum as the input of a model."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain, parameter, part
from scalelab.nn.dropout import Dropout
from scalelab.nn.masks import Context


class Embed(nn.Module):
    """A table of vectors.

    Attributes:
      num_rows: V for tokens, 2 for the segments of a pair.
      width: D.
      table_init: initializer of the table.
      rows_axis: logical name of the axis of rows.
      factor: looked-up vectors are multiplied by it, such as sqrt(D) (Vaswani et al. 2017, 3.4).
    """

    num_rows: int
    width: int
    table_init: nn.initializers.Initializer
    rows_axis: str = axes.VOCAB
    factor: float = 1.0

    def setup(self) -> None:
        """Makes the table [V, D]."""
        names, shape = (self.rows_axis, axes.WIDTH), (self.num_rows, self.width)
        self.table = parameter(self, "table", self.table_init, names, shape)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Looks up ids [...] -> [..., D], times `factor`."""
        if self.num_rows == 2:
            # The gradient of `where` is two sums. The gradient of a look-up would scatter all
            # positions into two rows, which is slow on a GPU (benchmarks/RESULTS.md).
            found = jnp.where(ids[..., None] > 0, self.table[1], self.table[0])
        else:
            found = jnp.take(self.table, ids, axis=0, mode="clip")
        return found if self.factor == 1.0 else found * self.factor


def with_zero_row(init: nn.initializers.Initializer, row: int) -> nn.initializers.Initializer:
    """Returns an initializer of tables that sets a row to 0, such as that of the padding token."""

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> jax.Array:
        return init(key, shape, dtype).at[row].set(0.0)

    return draw


def output_table(
    output_embedding: str | None, vocab_size: int, width: int, init: nn.initializers.Initializer
) -> Embed | None:
    """Returns the table that scores tokens if it is not the input's; None: they are tied.

    Tied tables: Press and Wolf 2017, 3.

    Args:
      output_embedding: config.model.output_embedding; None: tied.
      vocab_size: V.
      width: D.
      init: initializer of the table.
    """
    return None if output_embedding is None else Embed(vocab_size, width, init)


class InputEmbed(nn.Module):
    """Sum of token, position and segment embeddings, then norm, dropout and projection.

    Attributes:
      tokens: ids [B, T] -> [B, T, E], with a `table` for tied output.
      positions: positions [B or 1, T] -> [B or 1, T, E]; None: attention alone knows the order.
      segments: segment ids [B, T] -> [B, T, E]; None: no segments.
      norm: None: no norm.
      dropout_rate: after the norm.
      dtype: dtype of the result.
      projection: [B, T, E] -> [B, T, D], after the dropout (Lan et al. 2020, 3.1); None: E = D.
      tasks: task id [] -> [E] (Sun et al. 2020, "ERNIE 2.0", 4.1.2); None: the model reads none.
    """

    tokens: nn.Module
    positions: nn.Module | None
    dropout_rate: float
    segments: nn.Module | None = None
    norm: nn.Module | None = None
    dtype: DTypeLike = jnp.float32
    projection: nn.Module | None = None
    tasks: nn.Module | None = None

    @nn.compact
    def __call__(self, batch: dict[str, jax.Array], ctx: Context) -> jax.Array:
        """Embeds tokens: [B, T, D] of `dtype`.

        Args:
          batch: tokens [B, T]; segments [B, T] if an objective gives them, else segment 1 begins at
            second_starts [B], if any; task_ids [], 0 if absent.
          ctx: positions, and whether dropout is on.
        """
        with part("embedding"):
            x = self.tokens(batch["tokens"])
            if self.positions is not None:
                x = x + self.positions(ctx.positions)
            if self.segments is not None:
                ids = jnp.zeros_like(ctx.positions)
                if "segments" in batch:
                    ids = batch["segments"]
                elif "second_starts" in batch:
                    ids = (ctx.positions >= batch["second_starts"][:, None]).astype(jnp.int32)
                x = x + self.segments(ids)
            if self.tasks is not None:
                x = x + self.tasks(batch.get("task_ids", jnp.zeros((), jnp.int32)))
            if self.norm is not None:
                x = self.norm(x)
            x = Dropout(self.dropout_rate, name="dropout")(x.astype(self.dtype), ctx)
            if self.projection is not None:
                x = self.projection(x)
        return constrain(x, axes.BATCH, axes.LENGTH, axes.WIDTH)
