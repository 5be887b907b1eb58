"""Studies: from a stated comparison to finished runs; `scalelab.study` is its binary.

spec (the fields of a study) -> expand (its runs, each with a resolved config) -> plan (the time
that they will take) -> jobs (the work that is left) -> pool (several processes that do it).
"""
