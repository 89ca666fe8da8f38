"""The folder with the snapshots of a run: keeps the newest few and finds one to resume from.

A snapshot of one process is one file. A snapshot of several ranks has one part per rank. It becomes valid when rank 0
writes a commit file that lists all parts with their hashes: before that moment the snapshot does not exist, after it
the snapshot is complete.
"""

import json
import os
import re

from ..heartbeat import process_exists
from . import snapshot_file
from .fs import MAX_PID, TEMPORARY, Files, OwnedByAnotherUser, is_own, make_folder, read_own, write_atomically
from .loss_trace import NAME as TRACE
from .snapshot_file import CorruptSnapshot, ForeignSnapshot

MAX_KEPT = 3
AGREED = "agreed"
HASH = ".hash"
PART = re.compile(r"([0-9]{12})\.rank-([0-9]{1,6})-of-([0-9]{1,6})\.snapshot")
PART_OR_HASH = re.compile(PART.pattern + r"(?:\.hash)?")
COMMIT = re.compile(r"([0-9]{12})\.of-([0-9]{1,6})\.commit")


def part_name(position, rank, world_size):
    return "%012d.rank-%d-of-%d.snapshot" % (position, rank, world_size)


def commit_name(position, world_size):
    return "%012d.of-%d.commit" % (position, world_size)


def _is_leftover(name, include_own=False):
    """Return whether an exited process left this temporary file; with `include_own`, also whether this process did,
    which writes no more.
    """
    found = TEMPORARY.fullmatch(name)
    if found is None:
        return False
    pid = int(found[1])
    return (include_own and pid == os.getpid()) or not (0 < pid <= MAX_PID and process_exists(pid))


class Snapshot(object):
    """A complete snapshot that was read."""

    def __init__(self, path, header, state, digest):
        self.path = path
        self.position = header["position"]
        self.step = header["step"]
        self.header = header
        self.state = state
        self.digest = digest


class Store(object):
    def __init__(self, folder, rank=0, world_size=1, keep=MAX_KEPT, files=None):
        self.folder = folder
        self.rank = rank
        self.world_size = world_size
        self._keep = keep
        self._files = files or Files()
        self._last_part = (0, "", "")  # position, name and hash of what rank 0 wrote last
        self.last_position = -1
        """The position that was resumed from, or of the last snapshot since."""

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, position, header, raw):
        """Write this rank's part durably and return its path. Raise OSError on failure; older snapshots remain."""
        make_folder(self.folder)
        path = os.path.join(self.folder, part_name(position, self.rank, self.world_size))
        digest = snapshot_file.write(self._files, path, header, raw)
        if self.world_size == 1:
            self.prune(position)
        elif self.rank == 0:
            self._last_part = (position, os.path.basename(path), digest)
        else:
            # Rank 0 reads the hash from here instead of reading the whole part.
            write_atomically(self._files, path + HASH, [digest.encode("ascii")])
        return path

    def commit(self):
        """On rank 0: return whether all parts of the last snapshot exist. If so, commit it."""
        position, name, digest = self._last_part
        parts = {name: digest}
        for rank in range(1, self.world_size):
            name = part_name(position, rank, self.world_size)
            try:
                parts[name] = read_own(os.path.join(self.folder, name + HASH), 200).decode("ascii")
            except (OSError, UnicodeDecodeError):
                return False
        text = json.dumps({"position": position, "parts": parts}).encode("ascii")
        write_atomically(self._files, os.path.join(self.folder, commit_name(position, self.world_size)), [text])
        self.prune(position)
        return True

    def announce(self, position):
        """On rank 0: announce the position at which every rank takes a snapshot. Ranks are never far apart, so it is
        slightly ahead.
        """
        make_folder(self.folder)
        write_atomically(self._files, os.path.join(self.folder, AGREED), [b"%d" % position])

    def read_announced(self):
        """Return the position that rank 0 announced last; -1 if there is none."""
        try:
            return int(read_own(os.path.join(self.folder, AGREED), 32))
        except (OSError, ValueError):
            return -1

    def prune(self, newest):
        """Keep only the newest few snapshots, and remove temporary files of crashed processes. With one process,
        snapshots beyond `newest` are incomplete or belong to a training that was not resumed: they must not outlive the
        snapshot taken now. With several ranks, another rank may be ahead by one: files beyond `newest` are being
        written, and those of an earlier attempt were removed at the beginning.
        """
        kept = set([position for position in self.positions(own_only=True) if position <= newest][: self._keep])
        for name in self._list_files():
            found = PART_OR_HASH.fullmatch(name) or COMMIT.fullmatch(name)
            leftover = _is_leftover(name)
            ahead = found is not None and int(found[1]) > newest and int(found[found.re.groups]) == self.world_size > 1
            if leftover or (found is not None and int(found[1]) not in kept and not ahead):
                self._remove(name)

    def clear(self):
        """Remove everything at the end of the training: there is nothing to resume."""
        for name in self._list_files():
            is_snapshot_file = PART_OR_HASH.fullmatch(name) or COMMIT.fullmatch(name) or name in (AGREED, TRACE)
            if is_snapshot_file or _is_leftover(name, include_own=True):
                self._remove(name)

    def _remove(self, name):
        """Remove a file, unless it belongs to another user."""
        path = os.path.join(self.folder, name)
        try:
            if is_own(path):
                self._files.remove(path)
        except OSError:
            pass

    # --- reading -------------------------------------------------------------------------------------------------

    def positions(self, own_only=False):
        """Return the positions of all committed snapshots, intact or not, newest first. With `own_only`, ignore those
        of another user.
        """
        if self.world_size == 1:
            found = (PART.fullmatch(name) for name in self._list_files())
            known = [match for match in found if match and (match[2], match[3]) == ("0", "1")]
        else:
            found = (COMMIT.fullmatch(name) for name in self._list_files())
            known = [match for match in found if match and int(match[2]) == self.world_size]
        committed = {int(match[1]) for match in known if not own_only or is_own(os.path.join(self.folder, match[0]))}
        return sorted(committed, reverse=True)

    def begin(self, torch, on_corrupt=lambda path, why, foreign: None, required_keys=()):
        """Return the newest snapshot, to resume from. Discard parts beyond it, so that they are never combined with new
        parts.
        """
        snapshot = self.read_newest(torch, on_corrupt, required_keys)
        self.last_position = -1 if snapshot is None else snapshot.position
        if self.world_size > 1:
            self._discard_incomplete()
        return snapshot

    def _discard_incomplete(self):
        for name in self._list_files():
            part, commit = PART_OR_HASH.fullmatch(name), COMMIT.fullmatch(name)
            own = part is not None and (int(part[2]), int(part[3])) == (self.rank, self.world_size)
            incomplete = own and name.endswith(HASH) and int(part[1]) > self.last_position
            same_size = commit is not None and int(commit[2]) == self.world_size
            committed = same_size and int(commit[1]) > self.last_position >= 0
            if incomplete or (self.rank == 0 and (committed or name == AGREED)):
                self._remove(name)

    def read_newest(self, torch, on_corrupt=lambda path, why, foreign: None, required_keys=()):
        """Return the newest snapshot whose parts are all intact, or None. For each snapshot that is skipped, call
        `on_corrupt` with its path, the reason, and whether it was skipped because it belongs to another user. A state
        without all of the keys in `required_keys` is not valid.
        """
        for position in self.positions():
            try:
                return self._read(torch, position, required_keys)
            except CorruptSnapshot as why:
                path = os.path.join(self.folder, part_name(position, self.rank, self.world_size))
                on_corrupt(path, str(why), isinstance(why, ForeignSnapshot))
        return None

    def _read(self, torch, position, required_keys):
        path = os.path.join(self.folder, part_name(position, self.rank, self.world_size))
        header, state, digest = snapshot_file.read(torch, path)
        if not all(isinstance(header.get(name), int) for name in ("position", "step")):
            raise CorruptSnapshot("its header has no position or step")
        if required_keys and not (
            isinstance(state, dict) and all(isinstance(state.get(name), dict) for name in required_keys)
        ):
            raise CorruptSnapshot("it does not contain the expected state")
        if self.world_size > 1:
            self._check_all_parts(position, path, digest)
        return Snapshot(path, header, state, digest)

    def _check_all_parts(self, position, own_path, digest):
        """Check every part on every rank: all ranks must reach the same result without communicating."""
        try:
            text = read_own(os.path.join(self.folder, commit_name(position, self.world_size)), 1 << 20)
            parts = dict(json.loads(text)["parts"])
        except OwnedByAnotherUser as error:
            raise ForeignSnapshot("its commit file: %s" % error.strerror) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptSnapshot("its commit file cannot be read: %s" % error) from None
        for rank in range(self.world_size):
            name = part_name(position, rank, self.world_size)
            path = os.path.join(self.folder, name)
            found = digest if path == own_path else snapshot_file.compute_digest(path)
            if parts.get(name) != found:
                raise CorruptSnapshot("the part of rank %d is not what was written" % rank)

    def _list_files(self):
        try:
            return sorted(os.listdir(self.folder))
        except OSError:
            return []
