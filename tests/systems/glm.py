"""What is expected of GLM."""

from declared import GUESS, Expected, kernels_of_layers

STACK, EMBED = "decoder/stack", "decoder/embed"
LAYERS = 3  # in the test of initialisation
RESIDUAL = 0.02 / (2 * LAYERS) ** 0.5

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"out/kernel": RESIDUAL, "outer/kernel": RESIDUAL, "": 0.02},
    first_losses={"seq2seq": GUESS},
    # GPT-2's layers and last norm; 512 places in the text, and 513 in a blank.
    num_parameters={
        ("seq2seq", 30522, 512): (30522 + 512 + 513) * 768
        + 12 * (12 * 768**2 + 13 * 768)
        + 2 * 768,
    },
    decayed=kernels_of_layers(STACK)
    | {f"{EMBED}/{name}/table" for name in ("tokens", "places", "inner")},
    body=STACK,
    more_parts=True,  # one stack reads both parts, and the floor an encoder's and a decoder's
    mixed_masks=True,  # FLOPs count all scores of the mask of both parts
    peer="transformers has no class for it; test_glm.py compares it with BERT and GPT-2's blocks",
)
