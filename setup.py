"""Builds the C++ extension (csrc/); everything else about the package is in pyproject.toml."""

from setuptools import setup

setup()
