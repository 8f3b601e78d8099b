"""Work on table files, as the command does it: fit, predict, evaluate, explain."""
