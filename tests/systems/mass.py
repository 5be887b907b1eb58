"""What is expected of MASS."""

from declared import GUESS, Expected, kernels_of_layers

DECODER = "decoder/stack"
CROSS = {f"{DECODER}/layer/cross_attention/{n}/kernel" for n in ("query", "key", "value", "out")}

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"": 0.02},
    zero_rows={"decoder/embed/tokens/table": 1},  # padding
    first_losses={"seq2seq": GUESS},
    # BART's with 512 positions.
    num_parameters={("seq2seq", 50265, 512): 238_655_232 - 2 * 512 * 768},
    decayed=kernels_of_layers("encoder")
    | kernels_of_layers(DECODER)
    | CROSS
    | {"decoder/embed/tokens/table"}
    | {f"{embed}/positions/table" for embed in ("decoder/embed/inputs", "source_embed")},
    body="",
    more_parts=True,
    peer="transformers has no class for it; test_mass.py compares it with a changed class of BART",
)
