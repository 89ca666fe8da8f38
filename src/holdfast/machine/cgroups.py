"""The memory cgroups of a process: their limits, and how often the kernel killed in them.

Both versions may be mounted at once (v1 for memory, v2 for the rest), and inside a container the mount may show only a
part of the tree. `/proc/<pid>/cgroup` and `/proc/<pid>/mountinfo` together identify the folders of the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

UNLIMITED = 1 << 60
"""Version 1 reports "no limit" as a number near 2**63."""


class MemoryGroup(NamedTuple):
    folder: Path
    name: str
    version: int
    own: bool
    """False for a parent of the process's own group."""

    def limit(self) -> int | None:
        value = read_number(self.folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"))
        return None if value is None or value >= UNLIMITED else value

    def headroom(self) -> int | None:
        """Return the bytes until the limit. Inactive page cache counts as free: the kernel drops it first."""
        limit = self.limit()
        used = read_number(self.folder / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))
        if limit is None or used is None:
            return None
        idle_cache = "inactive_file" if self.version == 2 else "total_inactive_file"
        return max(0, limit - used + min(used, read_counts(self.folder / "memory.stat").get(idle_cache, 0)))

    def kills(self) -> int | None:
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        return read_counts(self.folder / file).get("oom_kill")

    def limit_hits(self) -> int | None:
        if self.version == 2:
            return read_counts(self.folder / "memory.events").get("max")
        return read_number(self.folder / "memory.failcnt")


def find_memory_groups(cgroup_text: str, mountinfo_text: str) -> list[MemoryGroup]:
    """Return the groups of the process that these files describe: its own first, then up to the root of the mount."""
    mounts = _find_memory_mounts(mountinfo_text)
    groups: list[MemoryGroup] = []
    for line in cgroup_text.splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        version = 2 if fields[1] == "" else 1
        if version not in mounts or (version == 1 and "memory" not in fields[1].split(",")):
            continue
        root, top = mounts[version]
        folder = top.joinpath(*_relative_parts(fields[2], root))
        while True:
            name = "/" + folder.relative_to(top).as_posix().removeprefix(".")
            groups.append(MemoryGroup(folder, name, version, own=not any(g.version == version for g in groups)))
            if folder == top:
                break
            folder = folder.parent
    return groups


def _find_memory_mounts(mountinfo_text: str) -> dict[int, tuple[str, Path]]:
    mounts: dict[int, tuple[str, Path]] = {}
    for line in mountinfo_text.splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, kinds = mount.split(), filesystem.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        version = {"cgroup2": 2, "cgroup": 1}.get(kinds[0])
        if version is None or (version == 1 and "memory" not in kinds[2].split(",")):
            continue
        mounts.setdefault(version, (_unescape(fields[3]), Path(_unescape(fields[4]))))
    return mounts


def _unescape(field: str) -> str:
    """Decode the octal escapes of a mountinfo field."""
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _relative_parts(path: str, root: str) -> list[str]:
    """Return the path components from the mount's root to the group; empty if the mount does not show the group."""
    parts, root_parts = [s for s in path.split("/") if s], [s for s in root.split("/") if s]
    if ".." in parts or parts[: len(root_parts)] != root_parts:
        return []
    return parts[len(root_parts) :]


def read_number(file: Path) -> int | None:
    try:
        return int(file.read_text().strip())
    except (OSError, ValueError):
        return None


def read_counts(file: Path) -> dict[str, int]:
    """Read a file of `name number` lines."""
    try:
        return parse_counts(file.read_text())
    except OSError:
        return {}


def parse_counts(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            found[name] = int(value)
    return found
