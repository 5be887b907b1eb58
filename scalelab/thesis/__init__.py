"""The benchmark's thesis: its published tables, protocol, hypotheses, table layouts and figures.

It is an example of a comparison with its own hypotheses. A study file names its `comparison.py` by
the dotted name; nothing else in scalelab imports this package.
"""
