"""Systems: one module for each family, found by its name.

A system module must export:

  DEPARTURES: tuple[Departure, ...]
      The config fields in which the family differs from the control, each with its source.
  SPECIAL_TOKENS: tuple[tuple[str, str], ...]
      (role, text) in the order of ids, from 0; roles: pad unk cls sep mask bos eos.
  FRAME: (begin, between, end)
      Texts of the special tokens around and between segments, each a tuple.
  ADAPTATION: Adaptation
      Its input for labelled tasks and what is classified, see `scalelab.adaptation`.
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

import types

from scalelab.names import load_module


def load(name: str) -> types.ModuleType:
    """Imports the system `name`.

    Raises:
      ValueError: there is no such system; the message names the nearest.
    """
    return load_module("systems", name)
