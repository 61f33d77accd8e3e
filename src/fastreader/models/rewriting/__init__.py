"""Changes to a reader's private copy of a model: fused layers, experts, upcast weights, recurrences."""
