"""Files: checked when read, complete or absent when written."""
