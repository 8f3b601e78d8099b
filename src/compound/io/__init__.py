"""Files on disk: validated when read, complete or absent when written."""
