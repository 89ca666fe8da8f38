"""Snapshots: the complete state of a training, saved so that it can resume as if it had never stopped.

    state (live tensors and plain values)
      -> capture     copied to host memory between two batches: the only time the training waits
      -> background  written by a thread
      -> store       an atomically written, hashed file; only the newest few are kept
      -> store       after a crash: the newest complete snapshot
      -> state       loaded back into the objects it came from

No pickle anywhere: a snapshot is JSON and raw tensor bytes, and reading one runs no code from it.
"""
