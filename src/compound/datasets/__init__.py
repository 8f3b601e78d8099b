"""Data sets as tensors: files, downloads, and loaders whose random choices come from a seed."""
