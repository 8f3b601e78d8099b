"""The command line: `compound`."""
