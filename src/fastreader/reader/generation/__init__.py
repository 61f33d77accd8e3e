"""Generate text: sampling, stop strings, text decoded so far, generation on a GPU."""
