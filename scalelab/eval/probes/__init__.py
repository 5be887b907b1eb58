"""Probes: predict words' syntax from the frozen states and attention of a model."""
