"""What is expected of RNNsearch."""

from declared import GUESS, Expected

ENCODER, DECODER = "encoder/layer", "decoder/stack/stack/layer"
RECURRENT = ("input/kernel", "recurrent_kernel")

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"table": 0.1 / 3**0.5, "kernel": (3 * 64) ** -0.5},
    uniform=True,
    largest=0.1,
    first_losses={"seq2seq": GUESS},
    num_parameters={
        # Three gates: of both halves of the encoder with two kernels and two biases, of the decoder
        # with one kernel more; the first state, the score, and the output.
        ("seq2seq", 32128, 512): 32128 * 768
        + 12 * (3 * (768**2 + 768 * 384 + 768) + 768)
        + 12 * (3 * (3 * 768**2 + 768) + 768)
        + 12 * (384 * 768 + 2 * 768**2 + 768)
        + 6 * 768**2
    },
    decayed=frozenset(
        f"{ENCODER}/{side}/{name}" for side in ("forward", "backward") for name in RECURRENT
    )
    | {f"{DECODER}/{name}" for name in (*RECURRENT, "context_kernel", "start/kernel")}
    | {f"{DECODER}/compatibility/{name}_kernel" for name in ("query", "key", "out")}
    | {"decoder/stack/out/kernel", "decoder/embed/tokens/table"},
    body="",
    overfit_steps=1000,
    transformer=False,
    more_parts=True,  # the floor has other products of attention
    peer="tests/systems/test_rnnsearch.py compares it with torch.nn's cells and attention by hand",
)
