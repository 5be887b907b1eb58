"""What is expected of BERT."""

from declared import COIN, CUT, GUESS, Expected, Peer, berts_kernels, encoder_settings

BASE = 110_106_428  # 110M in the paper, with its vocabulary and the pooler
POOLER = 768 * 768 + 768 + 2 * 768 + 2

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"mlm": GUESS, "nsp": COIN},
    num_parameters={("mlm+nsp", 30522, 512): BASE, ("mlm", 30522, 512): BASE - POOLER},
    decayed=berts_kernels("pair_head/pooler/kernel", "pair_head/classifier/kernel"),
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
