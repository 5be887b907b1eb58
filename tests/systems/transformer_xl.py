"""What is expected of Transformer-XL."""

from declared import GUESS, Expected, kernels_of_layers

STACK = "body/stack"

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"": 0.02},
    first_losses={"clm": GUESS},
    # With W_kR, u and v in each layer; without positions, biases of attention and a last norm.
    num_parameters={("clm", 50257, 1024): 50257 * 768 + 12 * (13 * 768**2 + 768 * (2 + 1 + 4 + 4))},
    decayed=kernels_of_layers(STACK)
    | {f"{STACK}/layer/attention/distances/key/kernel", "body/embed/tokens/table"},
    body=STACK + "/",
    more_parts=True,  # W_kR maps each distance once a batch
    fields={"system_options__memory_len": 8},
    memory_len=8,
    peer="tests/systems/test_transformer_xl.py compares it with XLNet's attn_type='uni'",
)
