"""The families of methods a study knows, one module each."""
