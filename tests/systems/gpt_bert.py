"""What is expected of GPT-BERT."""

from declared import GUESS, Expected, kernels_of_layers

RESIDUAL = 0.02 / (2 * 3) ** 0.5  # of the three layers of the test

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={
        "positions/table": 0.01,
        "attention/out/kernel": RESIDUAL,
        "ffn/outer/kernel": RESIDUAL,
        "": 0.02,
    },
    first_losses={"mntp": GUESS},
    num_parameters={("mntp", 50257, 1024): 124_439_808},  # of GPT-2
    decayed=kernels_of_layers() | {"embed/tokens/table", "embed/positions/table"},
    mixed_masks=True,
    peer="transformers has no GPT-BERT; the net is GPT-2's, which is compared with GPT2LMHeadModel",
)
