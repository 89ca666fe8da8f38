"""The simulator: every known failure, on demand. A simulated accelerator that can lie, and drills against the real supervisor."""
