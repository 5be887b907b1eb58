"""What is expected of BERT from left to right."""

from declared import CUT, GUESS, Expected, kernels_of_layers

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"clm": GUESS},
    num_parameters={("clm", 30522, 512): 110_106_428 - (768 * 768 + 768 + 2 * 768 + 2)},  # of MLM
    decayed=kernels_of_layers()
    | {"embed/tokens/table", "embed/positions/table", "embed/segments/table"}
    | {"token_head/dense/kernel"},
    peer="the net is BERT's under another mask, see test_bert_ltr.py; BERT's is compared",
)
