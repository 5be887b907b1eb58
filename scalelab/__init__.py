"""A laboratory for the controlled comparison of pre-trained language-model systems."""

__version__ = "0.1.0"
