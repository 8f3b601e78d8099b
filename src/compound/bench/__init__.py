"""Speed: the cases, their cost against a reference in one process, and against another checkout in two."""
