"""Loads, scores, compares and shows runs. Reads run folders; imports no model code."""
