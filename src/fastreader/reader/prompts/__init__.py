"""Texts to tokens: templates, pieces and the encoder."""
