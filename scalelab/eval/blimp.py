"""BLiMP: 67 paradigms of minimal pairs in 12 phenomena (Warstadt et al. 2020).

  python -m scalelab.eval.blimp --run=RUN --data=DIR --workdir=DIR

DIR holds the paradigms' files, <paradigm>.jsonl, or has them in data/. The columns `ngram` and
`lstm` have the accuracies of the paper's 5-gram model and LSTM, as corrected by its authors (means
61.2 and 69.8), if DIR holds published/models_summary.jsonl of the paper's repository. The paper's
Transformer-XL has 69.6 and its GPT-2 83.0.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("blimp")
