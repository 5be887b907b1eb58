"""A small encoder-decoder with large weights, and its forward pass without a cache."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import CrossAttention, SelfAttention
from scalelab.nn.embed import Embed, InputEmbed
from scalelab.nn.ffn import FeedForward, gelu_exact
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PostNorm, PreNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack

VOCAB, WIDTH, HEADS, FFN, MAX_LEN = 13, 12, 2, 20, 40
ENCODER_LAYERS, DECODER_LAYERS = 2, 3


def build(
    layer: Any = PreNorm, head_size: int = 5, vocab_size: int = VOCAB, max_len: int = MAX_LEN,
    num_heads: int = HEADS, width: int = WIDTH, ffn: int = FFN, stddev: float = 0.5,
    num_layers: tuple[int, int] = (ENCODER_LAYERS, DECODER_LAYERS), dropout_rate: float = 0.0,
    remat: str = "none",
) -> EncoderDecoder:  # fmt: skip
    norm, normal = functools.partial(LayerNorm, 1e-5), nn.initializers.normal(stddev)
    heads = num_heads, head_size, dropout_rate, normal, normal

    def stack(num_layers: int, **cross: Any) -> Stack:
        inner = FeedForward(ffn, gelu_exact, normal, normal)
        parts = SelfAttention(*heads), inner, norm(), norm(), dropout_rate
        return Stack(layer(*parts, **cross), num_layers, remat)

    cross = {"cross_attention": CrossAttention(*heads), "cross_norm": norm()}
    positions = LearnedPositions(max_len, width, normal)
    embed = InputEmbed(Embed(vocab_size, width, normal), positions, dropout_rate)
    decoder = Decoder(embed, stack(num_layers[1], **cross), PlainHead(), norm())
    return EncoderDecoder(stack(num_layers[0]), decoder, source_norm=norm())


def batch(source: Any, source_lengths: Any, tokens: Any, lengths: Any) -> dict[str, np.ndarray]:
    given = {"source": source, "source_lengths": source_lengths, "tokens": tokens}
    given |= {"lengths": lengths, "examples": np.arange(len(tokens))}
    return {name: np.asarray(values, np.int32) for name, values in given.items()}


@functools.cache
def parameters(net: EncoderDecoder) -> Any:
    """Parameters of std 0.7; positions are the largest.

    Shifts are small, and the tokens' vectors have one length: else most texts would be one token
    again and again, whatever the source.
    """
    one = batch([[0]], [1], [[0]], [1])
    shapes = jax.eval_shape(lambda: nn.unbox(net.init(jax.random.key(0), one, train=False)))
    rng = np.random.default_rng(1)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        name = jax.tree_util.keystr(path)
        shift = "norm" in name or "bias" in name
        spread = 0.1 if shift else 4.0 if "positions" in name else 0.7
        drawn = ("scale" in name) + spread * rng.standard_normal(leaf.shape)
        if "tokens" in name:
            drawn *= 2 / np.linalg.norm(drawn, axis=-1, keepdims=True)
        return jnp.asarray(drawn, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes["params"])


@functools.partial(jax.jit, static_argnums=0)
def hidden(net: EncoderDecoder, params: Any, batch: Any, cache: Any = None) -> Any:
    """Returns hidden states [B, T, D], and the cache."""
    return net.apply({"params": params}, batch, train=False, cache=cache)


@functools.partial(jax.jit, static_argnums=(0, 3))
def encode(net: EncoderDecoder, params: Any, batch: Any, max_len: int) -> Any:
    """Returns the cache of an empty target."""
    read = {name: batch[name] for name in ("source", "source_lengths", "examples")}
    return net.apply({"params": params}, read, max_len, method="encode")


def torch_hidden(layer: type[PreNorm | PostNorm], params: Any, batch: Any) -> np.ndarray:
    """Returns hidden states [B, T, D] by PyTorch's Transformer; heads are as wide as D / N."""
    import torch

    stacks = params["encoder"]["layer"], params["decoder"]["stack"]["layer"]
    layers = [len(stack["attention_norm"]["scale"]) for stack in stacks]
    num_heads, ffn = stacks[0]["attention"]["query"]["bias"].shape[1], stacks[0]["ffn"]["inner"]
    width = params["decoder"]["embed"]["tokens"]["table"].shape[1]

    p = jax.tree.map(lambda x: torch.tensor(np.asarray(x, np.float64)), params)

    def load(module: Any, weight: Any, bias: Any) -> None:
        module.weight.copy_(weight)
        module.bias.copy_(bias)

    def load_attention(module: Any, part: Any, i: int) -> None:
        for place, name in enumerate(("query", "key", "value")):
            rows = slice(place * width, (place + 1) * width)
            module.in_proj_weight[rows] = part[name]["kernel"][i].reshape(width, -1).T
            module.in_proj_bias[rows] = part[name]["bias"][i].reshape(-1)
        out = part["out"]
        load(module.out_proj, out["kernel"][i].reshape(-1, width).T, out["bias"][i])

    def load_layers(modules: Any, part: Any, norms: tuple[str, ...]) -> None:
        for i, module in enumerate(modules):
            load_attention(module.self_attn, part["attention"], i)
            if "cross_attention" in part:
                load_attention(module.multihead_attn, part["cross_attention"], i)
            for place, name in enumerate(norms, 1):
                norm = part[name]
                load(getattr(module, f"norm{place}"), norm["scale"][i], norm["bias"][i])
            for ours, theirs in (("inner", module.linear1), ("outer", module.linear2)):
                kernel = part["ffn"][ours]
                load(theirs, kernel["kernel"][i].T, kernel["bias"][i])

    sizes = width, num_heads, *layers, ffn["bias"].shape[1]
    order = {"norm_first": layer is PreNorm, "batch_first": True, "dtype": torch.float64}
    peer = torch.nn.Transformer(*sizes, 0.0, "gelu", **order)
    source, tokens = np.asarray(batch["source"]), np.asarray(batch["tokens"])
    (_, S), (_, T) = source.shape, tokens.shape  # noqa: N806
    with torch.no_grad():
        encoder, decoder = p["encoder"]["layer"], p["decoder"]
        load_layers(peer.encoder.layers, encoder, ("attention_norm", "ffn_norm"))
        names = "attention_norm", "cross_norm", "ffn_norm"
        load_layers(peer.decoder.layers, decoder["stack"]["layer"], names)
        for theirs, ours in ((peer.encoder, p["source_norm"]), (peer.decoder, decoder["norm"])):
            load(theirs.norm, ours["scale"], ours["bias"])
        table = decoder["embed"]["tokens"]["table"]
        places = decoder["embed"]["positions"]["table"]
        padding = torch.tensor(np.arange(S) >= np.asarray(batch["source_lengths"])[:, None])
        return peer(
            table[source] + places[:S],
            table[tokens] + places[:T],
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        ).numpy()
