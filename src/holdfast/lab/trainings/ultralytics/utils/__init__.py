"""As its parent."""
