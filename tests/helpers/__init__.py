"""What several test modules share: tiny models, scripted readers, mutants, servers and commands."""
