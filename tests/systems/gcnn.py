"""What is expected of the gated convolutional model."""

from declared import GUESS, Expected

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"table": 0.1, "kernel": (4 * 0.9 / (4 * 64)) ** 0.5},
    first_losses={"clm": GUESS},
    # Four taps for values and gates.
    num_parameters={("clm", 50257, 1024): 50257 * 768 + 12 * (4 * 768 * 2 * 768 + 2 * 768)},
    decayed=frozenset({"stack/layer/taps/kernel", "embed/tokens/table"}),
    fields={"system_options__dilation": 2},  # it then reads the whole row
    transformer=False,
    more_parts=True,  # the floor has products of attention
    peer="tests/systems/test_gcnn.py compares it with torch.nn.Conv1d",
)
