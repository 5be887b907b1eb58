"""What is expected of ELECTRA."""

from declared import COIN, CUT, GUESS, Expected, Peer, encoder_settings, kernels_of_layers

BASE = 108_891_648  # transformers' ElectraModel: the discriminator without a head
REPLACED_HEAD = 768 * 768 + 768 + 768 + 1
# Width 192: projection, twelve layers, head.
GENERATOR = (768 * 192 + 192) + 12 * 444_864 + (192 * 768 + 768 + 2 * 768 + 30522)

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"mlm": GUESS, "rtd": COIN},
    num_parameters={("mlm+rtd", 30522, 512): BASE + REPLACED_HEAD + GENERATOR},
    decayed=kernels_of_layers("discriminator/stack")
    | kernels_of_layers("generator/stack")
    | {"embed/tokens/table", "embed/positions/table", "embed/segments/table"}
    | {"generator/projection/kernel", "token_head/dense/kernel"}
    | {"replaced_head/dense/kernel", "replaced_head/out/kernel"},
    body="discriminator/",
    # A norm over the two features of a quarter of the tiny width lets no gradient through.
    fields={"system_options": {"generator_rate": 0.5}},
    overfit_steps=400,  # what the generator learns meanwhile moves the other's targets
    whole=True,
    more_parts=True,
    peer=Peer(
        "ElectraForMaskedLM",
        "ElectraForSequenceClassification",
        encoder_settings,
        lowercase=True,
        objectives=("mlm",),
        options=lambda num_layers: {"embedding_size": 11},
        # The second is as wide as its embedding, so without a projection.
        shapes=(((7, 84, 5), 128), ((1, 11, 2), 7)),
    ),
)
