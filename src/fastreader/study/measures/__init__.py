"""Further measures of a study's answers, by name: `Study.measures`."""
