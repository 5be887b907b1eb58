"""Synthetic corpora and tasks with known entropies and labels.

The entropy of a generated corpus is exact, so it shows whether a net has learnt all there is to
learn. Three kinds:

  markov      each word depends on the k words before it (`markov`)
  neighbours  every second word is a function of its two neighbours (`neighbours`)
  grammar     documents of sentences with topics, order, agreement, gold annotations (`pcfg`,
              `lexicon`, `grammar`, `discourse`, `gold`) and nine tasks in GLUE's layout
              (`tasks`, `glue_files`)

`python -m scalelab.worlds` writes them to disk. Entropies are in nats. This room needs only numpy;
only its program, tests and studies import it.
"""
