"""Mixture-of-Intervention (MoI): a better reading order from the scores of many (arXiv:2412.10684)."""
