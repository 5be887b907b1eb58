"""Systems: one module for each family, found by its name.

A system module must export:

  DEPARTURES: tuple[Departure, ...]
      The config fields in which the family differs from the control, each with its source.
  SPECIAL_TOKENS: tuple[tuple[str, str], ...]
      (role, text) in the order of ids, from 0; roles: pad unk cls sep mask bos eos.
  FRAME: (begin, between, end)
      Texts of the special tokens around and between segments, each a tuple.
  ADAPTATION: Adaptation
      Its input for labelled tasks and what is classified, see below.
  OBJECTIVES: tuple[str, ...]
      Names of the objectives that the net can serve.
  CAUSAL: bool
      Whether a token sees only what lies before it.
  build(*, num_heads, width, num_layers, ffn_width, vocab_size, max_len, dropout_rate, dtype, remat,
      output_embedding)
      -> nn.Module. Sizes N, D, L, F, V; `max_len` is the number of positions; `dtype` is the
      computation's, parameters are float32; `remat` is a name in nn.stack.REMAT_POLICIES;
      `output_embedding` is None where the input's table scores tokens, "untied" where its own does.

The net that `build` returns offers:

  net(batch, *, train, cache=None) -> (hidden [B, T, D], cache)
  net.token_features(hidden [..., D]) -> (features [..., D], table [V, D], bias [V] | None)
  net.token_logits(hidden [..., D]) -> [..., V] float32
  net.pair_logits(hidden [B, T, D]) -> [B, 2] float32, where OBJECTIVES has "nsp"
  net.init_cache(batch_size, max_len) -> cache, where CAUSAL; works on the unbound net too

Only parameters that are used come to exist: initialise through the same function that computes the
losses, and a net without NSP has no pooler.
"""

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any

from scalelab.helpers.names import load_module


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """What a system declares of fine-tuning, each with its source in the system's file.

    Attributes:
      begin: texts of the special tokens before the first text.
      between: those between two texts.
      end: those after the last text.
      added_tokens: those of them that pre-training did not have; they get new rows of the
        embedding, in this order, behind the vocabulary.
      reads: "first": the hidden state of the first token is classified; "last": of the last.
      both_orders: whether the two texts of a similarity task go through the net in both orders,
        their vectors added.
    """

    begin: tuple[str, ...]
    between: tuple[str, ...]
    end: tuple[str, ...]
    added_tokens: tuple[str, ...] = ()
    reads: str = "first"
    both_orders: bool = False


@dataclasses.dataclass(frozen=True)
class Departure:
    """One declared difference between a system and `configs/base.py`.

    Attributes:
      field: dotted name of the config field, such as "tokenizer.kind".
      value: the system's own value.
      source: where the value comes from: paper and section.
    """

    field: str
    value: Any
    source: str


def active_departures(
    departures: Iterable[Departure], fields: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns the departures that the run's config keeps, for its result.json.

    Args:
      departures: those of its system.
      fields: of its config, by dotted name.
    """
    return [dataclasses.asdict(d) for d in departures if fields[d.field] == d.value]


def load(name: str) -> types.ModuleType:
    """Imports the system `name`.

    Raises:
      ValueError: there is no such system; the message names the nearest.
    """
    return load_module("systems", name)
