"""Not Ultralytics: a small version of a part of it, at the same path, so that tracebacks look like its own."""
