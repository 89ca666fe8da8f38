"""The simulator: known failures on demand. A simulated accelerator with injectable faults, and drills of the supervisor."""
