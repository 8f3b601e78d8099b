"""Experiments, run directories and report pages."""
