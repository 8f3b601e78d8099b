"""Data sets: tensors in, tensors out; every random choice comes from a seed."""
