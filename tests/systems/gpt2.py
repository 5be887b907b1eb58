"""What is expected of GPT-2."""

from declared import GUESS, Expected, Peer, decoder_settings, kernels_of_layers

RESIDUAL = 0.02 / (2 * 3) ** 0.5  # the test has three layers

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={
        "positions/table": 0.01,
        "attention/out/kernel": RESIDUAL,
        "ffn/outer/kernel": RESIDUAL,
        "": 0.02,
    },
    first_losses={"clm": GUESS},
    num_parameters={("clm", 50257, 1024): 124_439_808},
    decayed=kernels_of_layers() | {"embed/tokens/table", "embed/positions/table"},
    whole=True,
    peer=Peer(
        "GPT2LMHeadModel",
        "GPT2ForSequenceClassification",
        decoder_settings,
        needs_pad=True,
        shapes=(((1, 208, 3), 128), ((7, 469, 1), 7)),
    ),
)
