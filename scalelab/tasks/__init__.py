"""Downstream tasks: protocol, files, recipes, submission."""
