"""Programs: methods as generators, whose requests are packed over many questions."""
