"""`compound explore`: a model as one page that computes its predictions in the browser."""
