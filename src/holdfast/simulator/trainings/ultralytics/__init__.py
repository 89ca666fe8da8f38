"""Not Ultralytics: a part of it in small, at the path that it has there, so that tracebacks read as its own do."""
