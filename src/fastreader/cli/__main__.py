"""`python -m fastreader.cli`."""

from fastreader.cli import main

main()
