"""Makes a training fail as LAB_FAULTS says: see holdfast.lab.injection."""

import os

if os.environ.get("LAB_FAULTS"):
    from holdfast.lab import injection

    injection.install()
