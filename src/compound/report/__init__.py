"""HTML pages and figure styles."""
