"""Loops over float32 arrays, compiled."""
