"""Text out of nets that read from left to right, over an explicit cache.

`stepper` runs such a net one token at a time, `choose` takes tokens from scores, `loop` continues
prompts with it, `beam` searches for the most probable continuations, `prompts` pads what they get.
"""
