"""The files of a run: folder, typed records, metrics, predictions, archive. Imports no JAX."""
