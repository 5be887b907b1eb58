"""Loads runs: run folders and studies -> typed records -> a pandas frame."""
