"""The machine's power source and sleep settings, parsed from command output and files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Power(NamedTuple):
    """Unknown values are None."""

    on_battery: bool | None = None
    charge: int | None = None
    """Percent."""
    sleeps_after: int | None = None
    """Idle minutes, as set for the current power source; 0 means never."""
    saving: bool | None = None
    """Whether the machine runs slower to save energy."""


def parse_pmset(battery: str, settings: str) -> Power:
    """Parse `pmset -g batt` and `pmset -g`, which prints the settings currently in use."""
    source = re.search(r"drawing from '([^']+)'", battery)
    charge = re.search(r"(\d+)%", battery)
    sleep = re.search(r"^\s*sleep\s+(\d+)", settings, re.MULTILINE)
    never = re.search(r"^\s*SleepDisabled\s+1\b", settings, re.MULTILINE)
    # 1 is low power and 2 is high power; older systems call it lowpowermode.
    mode = re.search(r"^\s*(?:low)?powermode\s+(\d+)", settings, re.MULTILINE)
    return Power(
        on_battery=None if source is None else source[1] != "AC Power",
        charge=int(charge[1]) if charge else None,
        sleeps_after=0 if never else int(sleep[1]) if sleep else None,
        saving=None if mode is None else mode[1] == "1",
    )


def read_supplies(folder: Path, profile: Path) -> Power:
    """Read /sys/class/power_supply and /sys/firmware/acpi/platform_profile (Linux).

    Ignore batteries of mice and keyboards.
    """
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
    profile_name = _read_text(profile)
    return Power(
        on_battery=on_battery,
        charge=min(charges, default=None),
        saving=profile_name in ("low-power", "quiet") if profile_name else None,
    )


def _read_text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
