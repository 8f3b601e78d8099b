"""Training: configuration, hold-out, the loop, checkpoints."""
