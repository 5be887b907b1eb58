"""Chassis: how embeddings, a layer stack and heads make a model. Families fill the slots."""
