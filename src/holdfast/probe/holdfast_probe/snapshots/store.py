"""The folder with the snapshots of a run: keeps the newest few and finds one to resume from.

A snapshot of one process is one file. A snapshot of several ranks has one part per rank. It becomes valid when rank 0 writes a commit
file that lists all parts with their hashes: before that moment the snapshot does not exist, after it the snapshot is complete.
"""

import json
import os
import re

from ..heartbeat import lives
from . import snapshot_file
from .fs import MAX_PID, TEMPORARY, Files, OfAnotherUser, is_own, make_folder, read_own, write_whole
from .loss_trace import NAME as TRACE
from .snapshot_file import CorruptSnapshot, NotOurs

KEPT = 3
AGREED = "agreed"
HASH = ".hash"
PART = re.compile(r"([0-9]{12})\.rank-([0-9]{1,6})-of-([0-9]{1,6})\.snapshot")
PART_OR_HASH = re.compile(PART.pattern + r"(?:\.hash)?")
COMMIT = re.compile(r"([0-9]{12})\.of-([0-9]{1,6})\.commit")


def part_name(position, rank, world_size):
    return "%012d.rank-%d-of-%d.snapshot" % (position, rank, world_size)


def commit_name(position, world_size):
    return "%012d.of-%d.commit" % (position, world_size)


def _is_left_behind(name, by_us=False):
    """Return whether an exited process left this temporary file; with `by_us`, also whether this process did, which writes no more."""
    found = TEMPORARY.fullmatch(name)
    if found is None:
        return False
    pid = int(found[1])
    return (by_us and pid == os.getpid()) or not (0 < pid <= MAX_PID and lives(pid))


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
    def __init__(self, folder, rank=0, world_size=1, keep=KEPT, files=None):
        self.folder = folder
        self.rank = rank
        self.world_size = world_size
        self._keep = keep
        self._files = files or Files()
        self._own = (0, "", "")  # position, name and hash of what rank 0 wrote last
        self.at = -1
        """The position that was resumed from, or of the last snapshot since."""

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, position, header, raw):
        """Write this rank's part durably and return its path. Raise OSError on failure; older snapshots remain."""
        make_folder(self.folder)
        path = os.path.join(self.folder, part_name(position, self.rank, self.world_size))
        digest = snapshot_file.write(self._files, path, header, raw)
        if self.world_size == 1:
            self.tidy(position)
        elif self.rank == 0:
            self._own = (position, os.path.basename(path), digest)
        else:
            # Rank 0 reads the hash from here instead of reading the whole part.
            write_whole(self._files, path + HASH, [digest.encode("ascii")])
        return path

    def commit(self):
        """On rank 0: return whether all parts of the last snapshot exist. If so, commit it."""
        position, name, digest = self._own
        parts = {name: digest}
        for rank in range(1, self.world_size):
            name = part_name(position, rank, self.world_size)
            try:
                parts[name] = read_own(os.path.join(self.folder, name + HASH), 200).decode("ascii")
            except (OSError, UnicodeDecodeError):
                return False
        text = json.dumps({"position": position, "parts": parts}).encode("ascii")
        write_whole(self._files, os.path.join(self.folder, commit_name(position, self.world_size)), [text])
        self.tidy(position)
        return True

    def agree(self, position):
        """On rank 0: announce the position at which every rank takes a snapshot. Ranks are never far apart, so it is slightly ahead."""
        make_folder(self.folder)
        write_whole(self._files, os.path.join(self.folder, AGREED), [b"%d" % position])

    def agreed(self):
        """Return the position that rank 0 announced last; -1 if there is none."""
        try:
            return int(read_own(os.path.join(self.folder, AGREED), 32))
        except (OSError, ValueError):
            return -1

    def tidy(self, newest):
        """Keep only the newest few snapshots, and remove temporary files of crashed processes. With one process, snapshots beyond `newest`
        are incomplete or belong to a training that was not resumed: they must not outlive the snapshot taken now. With several ranks, another
        rank may be ahead by one: files beyond `newest` are being written, and those of an earlier attempt were removed at the beginning.
        """
        kept = set([position for position in self.positions(own=True) if position <= newest][: self._keep])
        for name in self._names():
            found = PART_OR_HASH.fullmatch(name) or COMMIT.fullmatch(name)
            left = _is_left_behind(name)
            ahead = found is not None and int(found[1]) > newest and int(found[found.re.groups]) == self.world_size > 1
            if left or (found is not None and int(found[1]) not in kept and not ahead):
                self._remove(name)

    def clear(self):
        """Remove everything at the end of the training: there is nothing to resume."""
        for name in self._names():
            ours = PART_OR_HASH.fullmatch(name) or COMMIT.fullmatch(name) or name in (AGREED, TRACE)
            if ours or _is_left_behind(name, by_us=True):
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

    def positions(self, own=False):
        """Return the positions of all committed snapshots, intact or not, newest first. With `own`, ignore those of another user."""
        if self.world_size == 1:
            found = (PART.fullmatch(name) for name in self._names())
            known = [match for match in found if match and (match[2], match[3]) == ("0", "1")]
        else:
            found = (COMMIT.fullmatch(name) for name in self._names())
            known = [match for match in found if match and int(match[2]) == self.world_size]
        counted = {int(match[1]) for match in known if not own or is_own(os.path.join(self.folder, match[0]))}
        return sorted(counted, reverse=True)

    def begin(self, torch, torn=lambda path, why, foreign: None, holds=()):
        """Return the newest snapshot, to resume from. Discard parts beyond it, so that they are never combined with new parts."""
        snapshot = self.newest(torch, torn, holds)
        self.at = -1 if snapshot is None else snapshot.position
        if self.world_size > 1:
            self._take_back()
        return snapshot

    def _take_back(self):
        for name in self._names():
            part, commit = PART_OR_HASH.fullmatch(name), COMMIT.fullmatch(name)
            own = part is not None and (int(part[2]), int(part[3])) == (self.rank, self.world_size)
            begun = own and name.endswith(HASH) and int(part[1]) > self.at
            same = commit is not None and int(commit[2]) == self.world_size
            counted = same and int(commit[1]) > self.at >= 0
            if begun or (self.rank == 0 and (counted or name == AGREED)):
                self._remove(name)

    def newest(self, torch, torn=lambda path, why, foreign: None, holds=()):
        """Return the newest snapshot whose parts are all intact, or None. For each snapshot that is skipped, call `torn` with its path, the
        reason, and whether it was skipped because it belongs to another user. A state without all of the keys in `holds` is not valid.
        """
        for position in self.positions():
            try:
                return self._read(torch, position, holds)
            except CorruptSnapshot as why:
                path = os.path.join(self.folder, part_name(position, self.rank, self.world_size))
                torn(path, str(why), isinstance(why, NotOurs))
        return None

    def _read(self, torch, position, holds):
        own = os.path.join(self.folder, part_name(position, self.rank, self.world_size))
        header, state, digest = snapshot_file.read(torch, own)
        if not all(isinstance(header.get(name), int) for name in ("position", "step")):
            raise CorruptSnapshot("its header has no position or step")
        if holds and not (isinstance(state, dict) and all(isinstance(state.get(name), dict) for name in holds)):
            raise CorruptSnapshot("it does not contain the expected state")
        if self.world_size > 1:
            self._check_the_others(position, own, digest)
        return Snapshot(own, header, state, digest)

    def _check_the_others(self, position, own, digest):
        """Check every part on every rank: all ranks must reach the same result without communicating."""
        try:
            text = read_own(os.path.join(self.folder, commit_name(position, self.world_size)), 1 << 20)
            parts = dict(json.loads(text)["parts"])
        except OfAnotherUser as error:
            raise NotOurs("its commit file: %s" % error.strerror) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptSnapshot("its commit file cannot be read: %s" % error) from None
        for rank in range(self.world_size):
            name = part_name(position, rank, self.world_size)
            path = os.path.join(self.folder, name)
            found = digest if path == own else snapshot_file.digest_of(path)
            if parts.get(name) != found:
                raise CorruptSnapshot("the part of rank %d is not what was written" % rank)

    def _names(self):
        try:
            return sorted(os.listdir(self.folder))
        except OSError:
            return []
