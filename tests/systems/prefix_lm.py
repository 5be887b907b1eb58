"""What is expected of the prefix language model."""

from declared import Expected, kernels_of_layers

WIDTH, K, FFN = 64, 32, 256  # sizes in the test of initialisation
STACK = "decoder/stack/stack"

EXPECTED = Expected(
    tokenizer="unigram",
    stddevs={
        "query/kernel": (WIDTH * K) ** -0.5,
        "ffn/outer/kernel": FFN**-0.5,
        "tokens/table": 1.0,
        "": WIDTH**-0.5,
    },
    # Above a guess, 4.57, as T5: rows of the tied table have the length sqrt(D).
    first_losses={"seq2seq": 5.02},
    # Half of T5's 24 layers, without cross-attention, one table of biases, and one last norm.
    num_parameters={
        ("seq2seq", 32128, 512): 32128 * 768 + 12 * (12 * 768**2 + 2 * 768) + 32 * 12 + 768,
    },
    decayed=kernels_of_layers(STACK) | {"decoder/embed/tokens/table", "decoder/stack/buckets"},
    body="decoder/stack",
    more_parts=True,
    mixed_masks=True,  # FLOPs count all scores of the prefix mask
    peer="transformers has no class for it; test_prefix_lm.py compares it with T5Stack",
)
