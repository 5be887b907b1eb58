"""What is expected of ALBERT."""

from declared import COIN, CUT, GUESS, Expected, kernels_of_layers

BASE = 11_683_584  # of transformers' AlbertModel with its pooler; 12M in the paper
TOKEN_HEAD = 768 * 128 + 128 + 2 * 128 + 30000

EXPECTED = Expected(
    tokenizer="unigram",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"mlm": GUESS, "sop": COIN},
    num_parameters={("mlm+sop", 30000, 512): BASE + TOKEN_HEAD + 2 * 768 + 2},
    decayed=kernels_of_layers()
    | {"embed/tokens/table", "embed/positions/table", "embed/segments/table"}
    | {"embed/projection/kernel", "token_head/dense/kernel"}
    | {"pair_head/pooler/kernel", "pair_head/classifier/kernel"},
    more_parts=True,
    peer="ALBERT has no map yet",
)
