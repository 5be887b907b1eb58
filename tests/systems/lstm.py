"""What is expected of the LSTM."""

from declared import GUESS, Expected

LAYER = "body/stack/stack/layer"

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"table": 0.1 / 3**0.5, "kernel": (3 * 64) ** -0.5},
    uniform=True,
    largest=0.1,
    first_losses={"clm": GUESS},
    # Four gates, each with two kernels and a bias.
    num_parameters={("clm", 50257, 1024): 50257 * 768 + 12 * 4 * (2 * 768**2 + 768)},
    decayed=frozenset(
        {f"{LAYER}/input/kernel", f"{LAYER}/recurrent_kernel", "body/embed/tokens/table"}
    ),
    body="body/stack/",
    overfit_steps=2000,
    whole=True,
    transformer=False,
    more_parts=True,  # the floor has products of attention
    peer="tests/systems/test_lstm.py compares it with torch.nn.LSTM",
)
