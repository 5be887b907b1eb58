"""What is expected of GPT-BERT: its model is GPT-2's."""

import dataclasses

import declared

EXPECTED = dataclasses.replace(
    declared.get("gpt2"),
    first_losses={"mntp": declared.GUESS},
    num_parameters={("mntp", 50257, 1024): 124_439_808},
    mixed_masks=True,
    whole=False,
    peer="transformers has no GPT-BERT; its model is GPT-2's, compared with GPT2LMHeadModel",
)
