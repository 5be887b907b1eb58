"""What is expected of ERNIE."""

from declared import CUT, GUESS, Expected, Peer, berts_kernels, encoder_settings

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"knowledge_mlm": GUESS},
    num_parameters={("knowledge_mlm", 30522, 512): 109_514_298},  # ErnieForMaskedLM
    decayed=berts_kernels(),
    peer=Peer(
        "ErnieForMaskedLM",
        "ErnieForSequenceClassification",
        encoder_settings,
        lowercase=True,
        objectives=("mlm",),
        options=lambda num_layers: {"type_vocab_size": 2},
        shapes=(((7, 84, 5), 128),),
    ),
)
