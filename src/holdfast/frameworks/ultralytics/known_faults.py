"""Bugs of released Ultralytics versions."""

from __future__ import annotations

from holdfast.diagnosis.versions import ANY_MACOS, KnownFault, Range

KNOWN_FAULTS = (
    KnownFault(
        id="copies-not-awaited",
        what="ultralytics 8.3.203 copies batches to MPS without synchronizing: boxes arrive corrupt and none is assigned",
        remedy="install ultralytics 8.3.204 or newer",
        sources="ultralytics/hub#1199, ultralytics#22228, ultralytics#7554, pytorch#139550",
        severity="fatal",
        packages={"ultralytics": Range((8, 3, 203), (8, 3, 204))},
        macos=ANY_MACOS,
    ),
    KnownFault(
        id="validated-in-half",
        what="ultralytics 8.0.142 validates in half precision on MPS: losses are correct, but every metric is 0",
        remedy="install a newer ultralytics",
        sources="ultralytics#3962",
        severity="fatal",
        packages={"ultralytics": Range((8, 0, 142), (8, 0, 143))},
        macos=ANY_MACOS,
    ),
)
