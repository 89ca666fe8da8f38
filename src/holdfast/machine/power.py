"""Where the machine takes its power from, and whether it would fall asleep: text and files in, values out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Power(NamedTuple):
    """What is not known is None."""

    on_battery: bool | None = None
    charge: int | None = None
    """Percent."""
    sleeps_after: int | None = None
    """Minutes without a user, as it is set for the source of power now in use; 0 is never."""
    saving: bool | None = None
    """Whether it runs slower to save energy."""


def parse_pmset(battery: str, settings: str) -> Power:
    """`pmset -g batt` and `pmset -g`, whose settings are those now in use."""
    source = re.search(r"drawing from '([^']+)'", battery)
    charge = re.search(r"(\d+)%", battery)
    sleep = re.search(r"^\s*sleep\s+(\d+)", settings, re.MULTILINE)
    never = re.search(r"^\s*SleepDisabled\s+1\b", settings, re.MULTILINE)
    # 1 saves energy, and 2 is high power; older systems call it lowpowermode.
    mode = re.search(r"^\s*(?:low)?powermode\s+(\d+)", settings, re.MULTILINE)
    return Power(
        on_battery=None if source is None else source[1] != "AC Power",
        charge=int(charge[1]) if charge else None,
        sleeps_after=0 if never else int(sleep[1]) if sleep else None,
        saving=None if mode is None else mode[1] == "1",
    )


def read_supplies(folder: Path, profile: Path) -> Power:
    """Linux: /sys/class/power_supply and /sys/firmware/acpi/platform_profile. Batteries of mice and keyboards are others'."""
    online: list[bool] = []
    discharging: list[bool] = []
    charges: list[int] = []
    try:
        supplies = sorted(folder.iterdir())
    except OSError:
        supplies = []
    for supply in supplies:
        kind = _read_text(supply / "type")
        if kind == "Battery" and _read_text(supply / "scope") != "Device":
            discharging.append(_read_text(supply / "status") == "Discharging")
            if (charge := _read_text(supply / "capacity")).isdigit():
                charges.append(int(charge))
        elif kind == "Mains":
            online.append(_read_text(supply / "online") == "1")
    on_battery = None
    if discharging:
        on_battery = any(discharging) and not any(online)
    elif online:
        on_battery = False
    chosen = _read_text(profile)
    return Power(
        on_battery=on_battery,
        charge=min(charges, default=None),
        saving=chosen in ("low-power", "quiet") if chosen else None,
    )


def _read_text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
