"""The families of methods that a study has, one module each."""
