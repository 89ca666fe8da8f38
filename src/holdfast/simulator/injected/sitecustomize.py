"""Injects the faults in SIMULATOR_FAULTS into a training: see holdfast.simulator.injection."""

import os

if os.environ.get("SIMULATOR_FAULTS"):
    from holdfast.simulator import injection

    injection.install()
