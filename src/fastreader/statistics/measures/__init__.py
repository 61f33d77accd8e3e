"""Measures of answers, citations and retrieval."""
