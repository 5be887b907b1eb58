"""What is expected of BERT from left to right: its model is that of BERT's MLM."""

import dataclasses

import declared

BERT = declared.get("bert")
EXPECTED = dataclasses.replace(
    BERT,
    first_losses={"clm": declared.GUESS},
    num_parameters={("clm", 30522, 512): BERT.num_parameters["mlm", 30522, 512]},
    decayed=declared.berts_kernels(),
    whole=False,
    peer="the model is BERT's under another mask, see test_bert_ltr.py; BERT's is compared",
)
