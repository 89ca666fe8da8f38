"""Makes a training fail as SIMULATOR_FAULTS says: see holdfast.simulator.injection."""

import os

if os.environ.get("SIMULATOR_FAULTS"):
    from holdfast.simulator import injection

    injection.install()
