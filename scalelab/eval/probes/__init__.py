"""Probes: what the frozen states of a net tell about words and their syntax."""
