"""What is expected of BERT."""

from declared import COIN, CUT, GUESS, Expected, Peer, encoder_settings, kernels_of_layers

BASE = 110_106_428  # 110M in the paper, with its vocabulary and the pooler
POOLER = 768 * 768 + 768 + 2 * 768 + 2

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"mlm": GUESS, "nsp": COIN},
    num_parameters={("mlm+nsp", 30522, 512): BASE, ("mlm", 30522, 512): BASE - POOLER},
    decayed=kernels_of_layers()
    | {"embed/tokens/table", "embed/positions/table", "embed/segments/table"}
    | {"token_head/dense/kernel", "pair_head/pooler/kernel", "pair_head/classifier/kernel"},
    whole=True,
    peer=Peer(
        "BertForPreTraining",
        "BertForSequenceClassification",
        encoder_settings,
        lowercase=True,
        pair=("next_sentence_label", "seq_relationship_logits"),
        shapes=(((1, 84, 5), 7), ((7, 469, 2), 128), ((3, 84, 1), 1)),
    ),
)
