"""What is expected of T5."""

from declared import Expected, kernels_of_layers

WIDTH, K, FFN = 64, 32, 256  # sizes in the test of initialisation
DECODER = "decoder/stack/stack"
CROSS = {f"{DECODER}/layer/cross_attention/{n}/kernel" for n in ("query", "key", "value", "out")}

EXPECTED = Expected(
    tokenizer="unigram",
    stddevs={
        "query/kernel": (WIDTH * K) ** -0.5,
        "ffn/outer/kernel": FFN**-0.5,
        "tokens/table": 1.0,
        "": WIDTH**-0.5,
    },
    # Above a guess, 4.57: rows of the tied table have the length sqrt(D), so that scores differ.
    first_losses={"seq2seq": 5.13},
    # 12 layers on each side; the paper says about 220M, of 12 layers and 32,128 rows.
    num_parameters={("seq2seq", 32128, 512): 222_903_552},
    decayed=kernels_of_layers("encoder/stack")
    | kernels_of_layers(DECODER)
    | CROSS
    | {"decoder/embed/tokens/table", "encoder/buckets", "decoder/stack/buckets"},
    body="",
    more_parts=True,
    peer="tests/systems/test_t5.py compares it with T5ForConditionalGeneration: it reads a source",
)
