"""Training: configuration, hold-out, batches, the training loop, evaluation and checkpoints."""
