"""What is expected of the Transformer."""

import functools

from declared import (
    VOCAB,
    Expected,
    Peer,
    exact_sinusoids,
    kernels_of_layers,
    source_inputs,
    source_settings,
)

from scalelab.nn.embed import Embed

WIDTH, FFN = 64, 256  # sizes in the test of initialisation
DECODER = "decoder/stack"
CROSS = {f"{DECODER}/layer/cross_attention/{n}/kernel" for n in ("query", "key", "value", "out")}

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={
        "tokens/table": WIDTH**-0.5,
        "ffn/inner/kernel": (2 / (WIDTH + FFN)) ** 0.5,
        "ffn/outer/kernel": (2 / (WIDTH + FFN)) ** 0.5,
        "": WIDTH**-0.5,
    },
    uniform=True,
    # A guess, 4.57, and half of the scores' variance, which is about 1.
    first_losses={"seq2seq": 5.20},
    # Those of MarianMTModel with these sizes, without its sinusoids.
    num_parameters={("seq2seq", 32128, 512): 223_150_080},
    decayed=kernels_of_layers("encoder")
    | kernels_of_layers(DECODER)
    | CROSS
    | {"decoder/embed/tokens/table"},
    body="",
    more_parts=True,
    peer=Peer(
        "MarianMTModel",
        None,
        source_settings,
        vocab_size=VOCAB,
        inputs=source_inputs,
        outputs={
            "encoder_hidden_states": ("encoder", "source"),
            "encoder_attentions": ("encoder", "source"),
            "decoder_hidden_states": ("decoder", "tokens"),
            "decoder_attentions": (f"{DECODER}/layer/attention", "tokens"),
            "cross_attentions": (f"{DECODER}/layer/cross_attention", "tokens"),
        },
        exact=functools.partial(exact_sinusoids, "marian.modeling_marian.Marian"),
        shapes=(((7, 84, 1), 128), ((3, 21, 3), 128), ((1, 11, 2), 7)),
        mutations={
            "unscaled embeddings": lambda patch, to: patch.setattr(
                to, "Embed", lambda *given, factor: Embed(*given)
            ),
            "no positions": lambda patch, to: patch.setattr(
                to, "SinusoidPositions", lambda _: None
            ),
        },
    ),
)
