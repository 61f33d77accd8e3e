"""One reading: the reader, planning, log-likelihoods, generation and sessions."""
