"""Probes: words and their syntax, read from the frozen states and attention of a net."""
