"""What is expected of n-grams, which a contract test has without counts."""

from declared import GUESS, Expected

ROWS = 2**20  # the rows of a table of n-grams

EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={},
    first_losses={"clm": GUESS},
    # Chances of tokens; two arrays of n-grams an order, and two of their contexts.
    num_parameters={("clm", 50257, 1024): 50257 + 4 * ROWS + 2 * (50258 + ROWS) + 2},
    decayed=frozenset(),
    fields={"system_options__max_ngrams": 500},
    static=True,
    counted=True,
    one_softmax=False,
    transformer=False,
    more_parts=True,  # the floor has products of attention
    peer="tests/systems/test_ngram_counts.py compares the counts with nltk",
)
