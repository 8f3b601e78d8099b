"""Grids of runs, predictions and serving on a Ray cluster (extra `ray`).

cluster    connecting to a cluster, or starting one on this machine
grid       the runs of an experiment, each as a task with its own cores and memory
storage    results and checkpoints through an fsspec path, where nodes share no folder
predict    predictions for Ray Data sets, and for folders of Parquet files
serve      a deployment that answers rows in batches
"""
