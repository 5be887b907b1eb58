"""Downstream tasks: what a task is, its files, recipes, submission."""
