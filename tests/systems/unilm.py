"""What is expected of UniLM."""

from declared import CUT, GUESS, Expected, berts_kernels

# BERT's 110,106,428 without pooler and its classifier, with four more segments.
BASE = 110_106_428 - (768 * 768 + 768 + 2 * 768 + 2) + 4 * 768

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"unilm": GUESS},
    num_parameters={("unilm", 30522, 512): BASE},
    decayed=berts_kernels(),
    peer="transformers has no UniLM; test_unilm.py compares it with BertForMaskedLM and 4-D masks",
)
