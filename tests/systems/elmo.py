"""What is expected of ELMo."""

from declared import GUESS, Expected

LAYER = "stack/stack/layer"
SIDES = ("forward", "backward")

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"table": 0.1 / 3**0.5, "kernel": (3 * 64) ** -0.5},
    uniform=True,
    largest=0.1,
    first_losses={"bilm": GUESS},
    # Two streams of four gates, each with two kernels and a bias.
    num_parameters={("bilm", 50257, 1024): 50257 * 768 + 12 * 2 * 4 * (2 * 768**2 + 768)},
    decayed=frozenset({f"{LAYER}/{side}/input/kernel" for side in SIDES})
    | {f"{LAYER}/{side}/recurrent_kernel" for side in SIDES}
    | {"embed/tokens/table"},
    overfit_steps=500,
    transformer=False,
    all_places=2,
    more_parts=True,  # the floor has products of attention
    peer="tests/systems/test_elmo.py compares it with torch.nn.LSTM",
)
