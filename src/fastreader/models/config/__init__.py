"""What a model configuration says: windows, rotary regimes, indexed layers, heads."""
