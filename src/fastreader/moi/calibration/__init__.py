"""Measure, settle and store the position bias of a reader."""
