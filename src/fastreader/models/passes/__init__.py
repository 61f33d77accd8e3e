"""One forward pass: keys and values, attention, tables, CUDA graphs and the LM head."""
