"""Load GGUF files as they are: header, configuration, tokenizer and weights."""
