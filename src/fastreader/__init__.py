"""fastreader: score every ordering of the retrieved passages in one forward pass, and decide with the scores."""
