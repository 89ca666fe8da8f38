"""Runs a simulated training under the operator check in a process of its own, and hands back what it wrote.

The operator check ends the process that it checks, so each case is a fork, which costs no imports. The device is registered before:
that is done once a process, and stays for its children.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # an optimizer's first step imports it: here once, not in each fork

from holdfast.diagnosis.device_parity import StepAgreement, StepRecord, step_agreement
from holdfast.probe.holdfast_probe import op_check
from holdfast.probe.holdfast_probe.op_check import step_recorder
from holdfast.simulator import accelerator, fault_log
from holdfast.simulator.trainings import mixture, squares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.simulator.accelerator.catalogue import OpFault
    from holdfast.simulator.accelerator.faults import Fault

ROUNDING = 2.0**-23


@dataclass(frozen=True)
class Checked:
    """What one training under the operator check, or under the recording of steps, left behind."""

    lines: Sequence[Mapping[str, Any]]
    fired: bool
    seconds: float
    processor_seconds: float
    output: str

    @property
    def findings(self) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["event"] == "op-check-operator"]

    @property
    def ended(self) -> Mapping[str, Any]:
        return next((line for line in self.lines if line["event"] == "op-check-ended"), {})

    @property
    def records(self) -> list[StepRecord]:
        return [StepRecord.read(line) for line in self.lines if line["event"] == "step-record"]


def plain(optimizer: str = "AdamW", device: str = "sim") -> Callable[[], None]:
    return lambda: mixture.Training(device, optimizer, steps=100).run() and None


def yolo(device: str = "sim") -> Callable[[], None]:
    return lambda: squares.train_yolo(epochs=50, device=device)


def import_yolo() -> None:
    """Before the forks, which then cost no import."""
    squares._stub_torchvision_operators()
    import ultralytics.models.yolo.detect  # noqa: F401


def check(program: Callable[[], None], fault: Fault | None, steps: int = 3, seconds: float = 40.0) -> Checked:
    """Under the operator check."""
    return _forked(program, fault, lambda probe: op_check.install(torch, probe, steps=steps, seconds=seconds))


def record(
    program: Callable[[], None], fault: Fault | None, steps: int = 3, jitter: float = 0.0, seed: int = 0
) -> Checked:
    """Whole steps, with nothing in between."""
    return _forked(
        program, fault, lambda probe: step_recorder.install(torch, probe, steps=steps, jitter=jitter, jitter_seed=seed)
    )


def agreement(
    program: Callable[..., Callable[[], None]], make: Callable[[], Fault] | None, steps: int = 3
) -> StepAgreement:
    """Twice on the device, once on the CPU, twice on the CPU with its arithmetic moved by rounding."""
    first, second = (record(program(), make() if make else None, steps).records for _ in range(2))
    cpu = record(program(device="cpu"), None, steps).records
    noise = [record(program(device="cpu"), None, steps, ROUNDING, seed).records for seed in (1, 2)]
    return step_agreement(first, second, cpu, noise)


def missed(lie: OpFault, checked: Checked) -> str | None:
    """Why a lie does not count as found and named; None where it is."""
    if not checked.fired:
        return "the fault did not fire"
    if not checked.findings:
        return "nothing was found"
    for finding in checked.findings:
        name = finding["operator"].split(".")[1]
        if name not in lie.operators or finding["kind"] not in lie.kinds:
            return f"{finding['operator']} was called {finding['kind']}"
    first = checked.findings[0]
    known = (first["known"] or {}).get("id")
    if known != lie.known:
        return f"known as {known}, not {lie.known}"
    return None if first["step"] <= 3 else f"only at step {first['step']}"


def _forked(program: Callable[[], None], fault: Fault | None, begin: Callable[[Any], Any]) -> Checked:
    with tempfile.TemporaryDirectory() as folder:
        accelerator.switch_on()
        began = time.monotonic()
        child = os.fork()
        if not child:
            _in_the_child(program, fault, begin, Path(folder))
        _, _, usage = os.wait4(child, 0)
        seconds = time.monotonic() - began
        files = [path for path in sorted(Path(folder).glob("*.jsonl")) if path.name != "fired.jsonl"]
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        fired = bool(fault_log.read_faults(Path(folder, "fired.jsonl")))
        output = Path(folder, "output").read_text(errors="replace")
        return Checked(lines, fired, seconds, usage.ru_utime + usage.ru_stime, output)


def _in_the_child(program: Callable[[], None], fault: Fault | None, begin: Callable[[Any], Any], folder: Path) -> None:
    try:
        os.chdir(folder)
        output = os.open("output", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ[fault_log.FAULT_LOG] = str(folder / "fired.jsonl")
        torch.set_num_threads(1)
        accelerator.switch_on(*([fault] if fault is not None else []))
        session = begin(SimpleNamespace(attempt_dir=str(folder), inspectors=[]))
        try:
            program()
        finally:
            if hasattr(session, "close"):
                session.close(op_check.ENDED_EARLY)
    except BaseException:  # noqa: BLE001 - its text is all that the parent sees of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
