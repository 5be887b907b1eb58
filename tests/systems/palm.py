"""What is expected of PALM."""

from declared import Expected, kernels_of_layers

DECODER = "decoder/stack/part"
CROSS = {f"{DECODER}/layer/cross_attention/{n}/kernel" for n in ("query", "key", "value", "out")}
POINTER = {f"pointer/{n}/kernel" for n in ("source", "state", "score", "state_gate", "mean_gate")}

WIDTH = 64  # in the test of initialisation

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={
        "gate/kernel": (2 / (WIDTH + 1)) ** 0.5,
        "score/kernel": (2 / (WIDTH + 1)) ** 0.5,
        **dict.fromkeys(("pointer/source/kernel", "pointer/state/kernel"), WIDTH**-0.5),
        "head/kernel": WIDTH**-0.5,
        "": 0.02,
    },
    # Log 97 + log 2: half of the mass is on tokens of the source, and few of them are targets.
    first_losses={"copy": 5.23},
    # BART's with 512 positions, three square matrices and five vectors of the head, and a bias.
    num_parameters={
        ("copy", 50265, 512): 238_655_232 - 2 * 512 * 768 + 3 * 768**2 + 5 * 768 + 1,
    },
    decayed=kernels_of_layers("encoder/stack")
    | kernels_of_layers(DECODER)
    | CROSS
    | POINTER
    | {"encoder/embed/tokens/table", "head/kernel"}
    | {f"{embed}/positions/table" for embed in ("encoder/embed", "decoder/embed/part")},
    body="(encoder|decoder)/",
    more_parts=True,
    one_softmax=False,
    num_tanh=1,  # the attention that copies has one
    peer="transformers has no class for it; test_palm.py has identities",
)
