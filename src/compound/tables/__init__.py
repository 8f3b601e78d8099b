"""Table files, as the command line uses them: fit, predict, evaluate, explain."""
