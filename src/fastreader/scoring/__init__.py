"""Score every ordering of the passages: arguments, passes, results and overflow."""
