"""Chassis: how embeddings, a layer stack and heads make a net. Families fill the slots."""
