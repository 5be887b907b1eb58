"""What is expected of the feed-forward language model."""

from declared import GUESS, Expected

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"table": 0.1, "window/kernel": (4 * 64) ** -0.5, "kernel": 64**-0.5},
    first_losses={"clm": GUESS},
    # The map of four vectors, and one matrix a layer; a bias of each, and one of the scores.
    num_parameters={("clm", 50257, 1024): 50257 * 769 + (4 + 12) * 768**2 + 13 * 768},
    decayed=frozenset(
        {"stack/window/kernel", "stack/stack/layer/dense/kernel", "embed/tokens/table"}
    ),
    fields={"system_options__num_taps": 16},  # it then reads the whole row
    transformer=False,
    more_parts=True,  # the floor has products of attention
    peer="tests/systems/test_ffnn.py compares it with torch.nn.Linear",
)
