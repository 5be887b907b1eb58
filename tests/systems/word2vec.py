"""What is expected of the model of static vectors."""

import math

from declared import Expected

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"table": 0.5 / 64 / 3**0.5},
    largest=0.5 / 64,
    first_losses={"word_vectors": 6 * math.log(2)},  # scores of 0, of a neighbor and five tokens
    num_parameters={("word_vectors", 50257, 1024): 50257 * 768},  # one table, if tied
    decayed=frozenset({"embed/tokens/table", "output_embed/table"}),
    static=True,
    one_softmax=False,
    transformer=False,
    more_parts=True,  # the floor has products of attention
    peer="tests/systems/test_word2vec.py compares its losses with the papers' equations",
)
