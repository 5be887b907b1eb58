"""A laboratory for the controlled comparison of pre-trained language-model systems."""
