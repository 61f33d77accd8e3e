"""Finding, loading and running causal language models on packed trees."""
