"""Generated worlds: corpora and tasks from a seed, whose answers are known.

A downloaded corpus cannot tell whether a net learnt all that there was to learn; a generated one
can, because its entropy is a sum. Three kinds:

  markov      words that depend on the k before them (`markov`)
  neighbours  words that both their neighbours decide together (`neighbours`)
  grammar     documents of sentences, with topics, order, agreement, gold annotations (`pcfg`,
              `lexicon`, `grammar`, `discourse`, `gold`) and nine tasks in GLUE's layout
              (`statements`, `tasks`, `glue_files`)

`python -m scalelab.worlds` writes them to disk. Entropies are in nats. This room is a leaf: numpy
is all it needs, and nothing but its program, tests and studies imports it.
"""
