"""What is expected of GPT."""

from declared import GUESS, Expected, Peer, decoder_settings, kernels_of_layers

EXPECTED = Expected(
    tokenizer="bpe",
    stddevs={"": 0.02},
    first_losses={"clm": GUESS},
    num_parameters={("clm", 40478, 512): 116_534_784},  # 117M in the paper
    decayed=kernels_of_layers() | {"embed/tokens/table", "embed/positions/table"},
    peer=Peer(
        "OpenAIGPTLMHeadModel",
        "OpenAIGPTForSequenceClassification",
        decoder_settings,
        lowercase=True,
        needs_pad=True,
        shapes=(((3, 84, 4), 128), ((1, 208, 2), 512), ((7, 84, 1), 1)),
    ),
)
