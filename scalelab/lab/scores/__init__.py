"""Scores: item-level predictions of fine-tunings, beneath all tables, figures and claims."""
