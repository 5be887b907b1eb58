"""Text out of nets.

`stepper` runs a net that reads from left to right one token at a time, over an explicit cache;
`loop` continues prompts with it, `beam` searches for the most probable continuations. `gibbs` draws
texts from a masked net. `choose` takes tokens from scores.
"""
