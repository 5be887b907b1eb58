"""Text out of models.

`stepper` runs a left-to-right model one token at a time, with an explicit cache. `loop` continues
prompts with it, and `beam` searches for the most probable continuations. `gibbs` samples texts from
a masked model. `choose` chooses tokens by their scores.
"""
