"""Responses of a dialogue: each turn but the first is predicted from the turns before it.

Zhang, Sun et al. 2020 ("DialoGPT"), 3.1: p(T_2, ..., T_K | T_1), where each turn ends with the
end-of-text token. As `clm`, without the loss of the first turn; of a text of one turn nothing is
predicted. The format `dialogue` makes such texts of GPT-2's frame.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from scalelab.objectives import Baseline, Batch, Pairs, Pass, Setting, clm

NEEDS: tuple[str, ...] = ()
HEADS = ("token",)
SEES = "left"
BASELINE = Baseline("loss", None, 0.5)


@dataclasses.dataclass(frozen=True)
class Response:
    """Next-token prediction behind the first turn; `objectives.Objective` documents the methods.

    Attributes:
      end: id of the token that ends a turn.
    """

    end: int
    name: ClassVar[str] = "response"
    samples: ClassVar[bool] = False
    predicts: ClassVar[str | None] = "next"

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss (and accuracy) of token t + 1 where a turn has ended at t or before."""
        return clm.next_tokens(
            model, batch, ctx, jnp.cumsum(batch["tokens"] == self.end, axis=1) > 0
        )


def make(setting: Setting, options: None = None) -> Response:
    """Makes the objective."""
    del options
    return Response(setting.special_ids["eos"])
