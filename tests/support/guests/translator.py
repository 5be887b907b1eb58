"""An encoder-decoder that predicts a text from a source; the source is the same text."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import declared
import small_encdec

from scalelab import formats, systems
from scalelab.formats import doc_sentences
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import head_size
from scalelab.objectives import clm
from scalelab.systems.gpt2 import ADAPTATION, SPECIAL_TOKENS  # noqa: F401

END = "<|endoftext|>"
DEPARTURES = (
    systems.Departure("objective", "translate", "a test"),
    systems.Departure("data.format", "copies", "a test"),
)
FRAME: tuple[tuple[str, ...], ...] = ((), (END,), (END,))
HEADS, PREDICTS, SEES, HAS_SOURCE, ORDER = ("token",), "next", "source + left", True, "shuffled"
START = "eos"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    stddev: float = 0.02  # standard deviation of the initial parameters


def build(sizes: systems.Sizes, options: Options, vocab_size: int) -> EncoderDecoder:
    return small_encdec.build(
        head_size=head_size(sizes.width, sizes.num_heads), num_heads=sizes.num_heads,
        vocab_size=vocab_size, max_len=sizes.max_len, width=sizes.width, ffn=sizes.ffn_width,
        num_layers=(sizes.num_layers, sizes.num_layers), stddev=options.stddev,
        dropout_rate=sizes.dropout_rate, remat=sizes.remat,
    )  # fmt: skip


def n_model(sizes: systems.Sizes, options: Options) -> int:
    return (12 + 16) * sizes.num_layers * sizes.width**2


@dataclasses.dataclass(frozen=True)
class Translate(clm.CLM):
    """Next-token prediction with a source."""

    name: ClassVar[str] = "translate"


def build_examples(documents: Any, **given: Any) -> Iterator[Any]:
    for chunk in doc_sentences.build(documents, **given):
        chunk.ragged["source"] = chunk.ragged["tokens"]
        yield chunk


SOURCE = formats.Array("source", "ragged", None)
FORMATS = {"copies": dict(VERSION=1, ARRAYS=(*formats.COMMON, SOURCE), build=build_examples)}
OBJECTIVES = {
    "translate": vars(clm)
    | dict(SEES=SEES, NEEDS=("source",), make=lambda setting, options: Translate())
}

ENCODER, DECODER = (declared.kernels_of_layers(s) for s in ("encoder", "decoder/stack"))
CROSS = {
    f"decoder/stack/layer/cross_attention/{n}/kernel" for n in ("query", "key", "value", "out")
}
TABLES = {f"decoder/embed/{name}/table" for name in ("tokens", "positions")}
EXPECTED = declared.Expected(
    tokenizer="bytebpe",
    stddevs={"": 0.02},
    first_losses={"translate": declared.GUESS},
    num_parameters={},
    decayed=ENCODER | DECODER | CROSS | TABLES,
    whole=True,
    peer="tests/decode/test_source.py compares its model with torch.nn.Transformer",
)
