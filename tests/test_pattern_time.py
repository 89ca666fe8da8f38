"""Text of other people is searched in time that grows with its length, and not with its square."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.frameworks.ultralytics.install import UltralyticsInstall
from holdfast.machine import kernel_log
from holdfast.render.box import wrap
from holdfast.render.text import printable


def kernel(text):
    lines = [*kernel_log.parse_dmesg(f"[ 5.0] {text}"), *kernel_log.parse_journal(f"1700000000.5 host sudo[1]: {text}")]
    kernel_log.find_kernel_evidence(lines, {1}, 0.0, 1e10)
    kernel_log.find_daemon_evidence(lines, {1}, (), 0.0)


def panel_row(text):
    list(wrap(printable(text), 80))


def model_name(text):
    UltralyticsInstall(Path("/nowhere")).ships_model(text)


@pytest.mark.parametrize("read", [kernel, panel_row, model_name])
@pytest.mark.parametrize("piece", ["a", "1", " ", "[", "a[1]: ", "\t", "Killed process "])
def test_long_line(read, piece):
    """A line of a log that every user can write to, a value of a plan, a message in the panel."""

    def seconds(length):
        text = piece * (length // len(piece))
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            read(text)
            best = min(best, time.process_time() - begun)
        return best

    assert seconds(32_000) < 10 * max(seconds(8_000), 0.002)


def test_number_without_end():
    """A pid of 5,000 digits in the journal is no error of ours."""
    kernel("Killed process " + "1" * 5000)
    kernel("python[" + "1" * 5000 + "]: segfault at 0")
    kernel("sending SIGTERM to process " + "1" * 5000)
