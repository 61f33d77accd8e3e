"""fastreader inside other libraries, each module with the extra of its name."""
