"""Nouns that need NumPy only: the prefix tree, designs, protocols, checks and progress."""
