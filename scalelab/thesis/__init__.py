"""The benchmark's thesis: its published tables, protocol, hypotheses, table layouts and figures.

The example of a comparison with hypotheses of its own: a study file names `comparison.py` of this
package by its dotted name, and nothing else of scalelab imports it.
"""
