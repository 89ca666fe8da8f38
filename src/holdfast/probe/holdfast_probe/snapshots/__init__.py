"""Snapshots: the whole state of a training, kept so that it can go on as if it had never stopped.

    state (live tensors and plain values)
      -> capture     a copy in host memory, taken between two batches: the only time that the training waits
      -> background  written by a thread
      -> store       a file that is whole or not there, hashed, the newest few kept
      -> store       after a death: the newest that is whole
      -> state       given back to the objects that it came from

No pickle anywhere: a snapshot is JSON and raw numbers, and reading one runs no code that is in it.
"""
