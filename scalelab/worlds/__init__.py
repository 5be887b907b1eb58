"""Synthetic corpora and tasks with known entropies and labels.

The entropy of a generated corpus is known exactly, so a loss equal to it shows that a model has
learned everything. The kinds:

  markov      each word depends on the k words before it (`markov`)
  neighbours  every second word is a function of its two neighbors (`neighbours`)
  copies      a word repeats the word a lag before it (`copies`)
  sequences   random words, and tasks of recall, copies and reversed texts (`sequences`, `pairs`)
  grammar     documents of sentences with topics, order, agreement, gold annotations (`pcfg`,
              `lexicon`, `grammar`, `discourse`, `gold`) and nine tasks in GLUE's layout
              (`tasks`, `glue_files`)

`cleaning` has C4's rules for dirty and duplicated text.
`python -m scalelab.worlds` writes them to disk. Entropies are in nats. This package needs only
numpy; only its program, tests and studies import it.
"""
