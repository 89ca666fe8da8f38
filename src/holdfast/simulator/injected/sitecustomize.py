"""Makes a training fail as LAB_FAULTS says: see holdfast.simulator.injection."""

import os

if os.environ.get("LAB_FAULTS"):
    from holdfast.simulator import injection

    injection.install()
