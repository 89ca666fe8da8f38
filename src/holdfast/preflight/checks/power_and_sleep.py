"""Will the machine stay awake and powered for hours?

**What it checks.** Checks whether the machine runs on battery, is in low-power mode or would sleep when idle, and whether Holdfast
can keep it awake (with `caffeinate` on macOS, `systemd-inhibit` on Linux). The check briefly tests this.

**Why.** If the machine sleeps, an epoch appears to take eight hours. Holdfast keeps the machine awake during a run, but a laptop on
battery still sleeps when its lid is closed, and every run stops when the battery runs out.

**What to do.** Plug in the machine, leave the lid open, and turn off low-power mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.machine.keep_awake import not_kept
from holdfast.machine.power import Power
from holdfast.preflight.case_contexts import RecordedMachine, linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, finding, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.machine.base import AwakeResult
    from holdfast.schema.verdicts import Finding


def run(context: CheckContext) -> Answer:
    power = context.machine.power()
    with context.machine.keep_awake() as awake:
        pass
    if context.plan is not None and not context.plan.keep_awake:
        awake = not_kept("the plan has keep_awake = false")
    source = {True: "on battery", False: "on mains power", None: "no battery detected"}[power.on_battery]
    message = f"{source}. {awake.message.rstrip('.')}"
    return Answer(message, tuple(_findings(power, awake, on_mac=context.on_mac)))


def _findings(power: Power, awake: AwakeResult, *, on_mac: bool) -> Iterator[Finding]:
    charge = f" at {power.charge}%" if power.charge is not None else ""
    if power.on_battery:
        yield warn(
            f"The machine runs on battery{charge}: training drains it within an hour or two, and the machine sleeps when the lid is closed.",
            evidence=[f"power: battery{charge}"],
            remedies=["plug in the machine"],
        )
    if power.saving:
        where = "System Settings, Battery: Low Power Mode off (or: sudo pmset -a lowpowermode 0)"
        yield warn(
            "Low-power mode is on: the machine computes at reduced speed.",
            evidence=["low-power mode is on"],
            remedies=[where if on_mac else "powerprofilesctl set performance, or balanced"],
        )
    if not awake.kept and power.sleeps_after != 0:
        after = f", and it falls asleep after {power.sleeps_after} min of inactivity" if power.sleeps_after else ""
        yield finding(
            "warn" if power.sleeps_after else "note",
            f"{awake.message.rstrip('.')}{after}.",
            evidence=[awake.message],
            remedies=["sudo pmset -c sleep 0" if on_mac else "turn off automatic suspend in the system settings"],
        )


def _machine(awake: str = "", **power: object) -> RecordedMachine:
    return RecordedMachine(supply=Power(**power), cannot_keep_awake=awake)  # type: ignore[arg-type]


CHECK = Check(
    kind="environment",
    run=run,
    cases=lambda: (
        Case("a MacBook on battery", mac(machine=_machine(on_battery=True, charge=78, sleeps_after=1)), "warn"),
        Case("plugged in", mac(machine=_machine(on_battery=False, charge=100, sleeps_after=1)), "passed"),
        Case("low-power mode", mac(machine=_machine(on_battery=False, saving=True)), "warn"),
        Case(
            "the machine sleeps, and Holdfast cannot keep it awake",
            mac(machine=_machine("no caffeinate", sleeps_after=10)),
            "warn",
        ),
        Case(
            "Holdfast cannot keep it awake, but it never sleeps", mac(machine=_machine("no", sleeps_after=0)), "passed"
        ),
        Case("a server", linux(), "passed"),
        Case("a Linux laptop on battery", linux(machine=_machine(on_battery=True, charge=40)), "warn"),
    ),
)
