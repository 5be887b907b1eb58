"""Studies: from a stated comparison to finished runs; `scalelab.study` is its binary.

spec (what a study says) -> expand (its runs, each with a resolved config) -> cost (what they will
take) -> jobs (what is left to do) -> pool (doing it, several processes at a time).
"""
