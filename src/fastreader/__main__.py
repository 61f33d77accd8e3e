"""``python -m fastreader``: the command line, where its script is not on the path."""

from fastreader.cli import main

if __name__ == "__main__":
    main()
