"""See the parent package."""
