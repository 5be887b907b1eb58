"""Configs: frozen dataclasses filled strictly, config files, and command lines."""
