"""Find a model, choose its classes, and read its weights."""
