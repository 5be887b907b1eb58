"""Layers and config fields that several families share."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.interop.mapping import Architecture, Choice, Field, Fixed, Map, Row, affine, norm, row

PARTS = ("query", "key", "value")
# Spellings of `transformers` -> names in nn.ffn.ACTIVATIONS.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ENCODER_CHOICES = (
    Choice("activation", "hidden_act", "gelu", "gelu", ACTIVATIONS),
    Choice("norm_epsilon", "layer_norm_eps", 1e-12, 1e-12),
)
TIED = Fixed(
    "tie_word_embeddings", (True,), True, "the input's table scores tokens (model.output_embedding)"
)
ENCODER_FIXED = (
    Fixed("position_embedding_type", ("absolute",), "absolute", "its positions are absolute"),
    Fixed("is_decoder", (False,), False, "every token attends to every other"),
    Fixed("add_cross_attention", (False,), False, "it has no cross-attention"),
)

SEGMENTS = Fixed("type_vocab_size", (2,), 2, "it has two segments")
TASK_CLASSES = {  # kind of a head for tasks -> end of the name of its class
    "classify": "SequenceClassification", "tags": "TokenClassification",
    "spans": "QuestionAnswering", "choices": "MultipleChoice",
}  # fmt: skip


def encoder_map(
    system: str,
    classes: str,
    sizes: tuple[int, ...],
    *,
    dropout: float = 0.1,
    offset: int = 0,
    fields: tuple[Field, ...] = (),
    fixed: tuple[Fixed, ...] = (SEGMENTS,),
    embeddings: tuple[Row, ...] | None = None,
    body: tuple[Row, ...],
    heads: Mapping[str, tuple[Row, ...]],
    architectures: tuple[Architecture, ...],
    **own: Any,
) -> Map:
    """Makes the map of an encoder with BERT's names: what all share, and then its own.

    Args:
      system: its name, which begins the names of its tensors.
      classes: beginning of the names of its classes.
      sizes: defaults of the class: heads, width, layers, FFN, positions, vocabulary.
      dropout: default of both rates of the class.
      offset: positions of the class that are not ours.
      fields: more fields of config.json that set ours.
      fixed: fields of config.json that must have one value, besides ENCODER_FIXED.
      embeddings: rows of positions and segments; None: BERT's.
      body: rows of parameters behind the embedding.
      heads: name of a head -> its rows, besides those of tags and spans.
      architectures: classes besides those of TASK_CLASSES.
      **own: other fields of `Map`, or other values of those set here.
    """
    embed = f"{system}.embeddings"
    num_heads, width, num_layers, ffn_width, max_len, vocab_size = sizes
    shared = {
        "choices": ENCODER_CHOICES,
        "fields": (
            Field("num_heads", "num_attention_heads", num_heads),
            Field("width", "hidden_size", width),
            Field("num_layers", "num_hidden_layers", num_layers),
            Field("ffn_width", "intermediate_size", ffn_width),
            Field("max_len", "max_position_embeddings", max_len, offset),
            Field("vocab_size", "vocab_size", vocab_size),
            Field("dropout_rate", "hidden_dropout_prob", dropout),
            Field("dropout_rate", "attention_probs_dropout_prob", dropout),
            *fields,
        ),
        "inputs": ("input_ids", "token_type_ids", "attention_mask"),
        "buffers": (rf"{system}\.embeddings\.(position|token_type)_ids",),
    }
    tables = (
        row("embed/positions/table", f"{embed}.position_embeddings.weight"),
        row("embed/segments/table", f"{embed}.token_type_embeddings.weight"),
    )
    rows = (
        row("embed/tokens/table", f"{embed}.word_embeddings.weight", "vocabulary"),
        *(embeddings or tables),
        *norm("embed/norm", f"{embed}.LayerNorm"),
    )
    tasks = {"tags": affine("head/out", "classifier"), "spans": affine("head/out", "qa_outputs")}
    heads = {**heads, **tasks}
    found = (Architecture(f"{classes}For{end}", (kind,)) for kind, end in TASK_CLASSES.items()
             if kind in heads)  # fmt: skip
    return Map(
        system=system, model_type=system, prefix=f"{system}.", fixed=(*ENCODER_FIXED, *fixed),
        body=rows + body, heads=heads, architectures=(*architectures, *found), **(shared | own),
    )  # fmt: skip


def with_defaults(records: tuple, defaults: Mapping[str, Any]) -> tuple:
    """Returns fields or choices with the defaults of another class, by their names there."""
    return tuple(dataclasses.replace(x, default=defaults.get(x.key, x.default)) for x in records)


def encoder_layers(tensor: str, path: str = "stack/layer") -> tuple[Row, ...]:
    """Makes the rows of the layers of BERT and RoBERTa.

    Args:
      tensor: prefix of the tensors' names.
      path: prefix of our parameters' paths.
    """
    split = ("split_heads", "split_heads_bias")
    each = [
        affine(f"{path}/attention/{part}", f"{tensor}.attention.self.{part}", *split)
        for part in PARTS
    ]
    return (
        *(row for rows in each for row in rows),
        *affine(f"{path}/attention/out", f"{tensor}.attention.output.dense", "join_heads"),
        *norm(f"{path}/attention_norm", f"{tensor}.attention.output.LayerNorm"),
        *affine(f"{path}/ffn/inner", f"{tensor}.intermediate.dense"),
        *affine(f"{path}/ffn/outer", f"{tensor}.output.dense"),
        *norm(f"{path}/ffn_norm", f"{tensor}.output.LayerNorm"),
    )


def decoder_layers(tensor: str, path: str = "stack/layer") -> tuple[Row, ...]:
    """Makes the rows of the layers of GPT and GPT-2.

    Args:
      tensor: prefix of the tensors' names.
      path: prefix of our parameters' paths.
    """
    kernels, biases = (
        tuple(f"{path}/attention/{part}/{kind}" for part in PARTS) for kind in ("kernel", "bias")
    )
    return (
        Row(kernels, (f"{tensor}.attn.c_attn.weight",), "fused_qkv"),
        Row(biases, (f"{tensor}.attn.c_attn.bias",), "fused_qkv"),
        *affine(f"{path}/attention/out", f"{tensor}.attn.c_proj", "conv1d_join_heads"),
        *norm(f"{path}/attention_norm", f"{tensor}.ln_1"),
        *affine(f"{path}/ffn/inner", f"{tensor}.mlp.c_fc", "same"),
        *affine(f"{path}/ffn/outer", f"{tensor}.mlp.c_proj", "same"),
        *norm(f"{path}/ffn_norm", f"{tensor}.ln_2"),
    )
