"""Reorder the passages of one question and answer from the new order."""
