"""Comparing: statistics, comparability, claims and their verdicts."""
