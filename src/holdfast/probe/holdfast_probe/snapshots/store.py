"""The folder of a run's snapshots: the newest few, and which of them can be gone on from.

A snapshot of one process is one file. One of several ranks is a part for each, and counts from the moment at which rank 0
has written down that all parts are there, with their hashes: before that moment there is none of it, after it there is all.
"""

import json
import os
import re

from ..heartbeat import process_exists
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
    """Whether a process that is gone left this half-written; `by_us`: or this one, which writes nothing more."""
    found = TEMPORARY.fullmatch(name)
    if found is None:
        return False
    pid = int(found[1])
    return (by_us and pid == os.getpid()) or not (0 < pid <= MAX_PID and process_exists(pid))


class Snapshot(object):
    """One that was read, whole."""

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
        self._own = (0, "", "")  # what rank 0 wrote last: its position, name and hash
        self.at = -1
        """The position that was gone on from, or taken since."""

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, position, header, raw):
        """This rank's part, on disk when it returns. Raises OSError; what was there before still is. Returns its path."""
        make_folder(self.folder)
        path = os.path.join(self.folder, part_name(position, self.rank, self.world_size))
        digest = snapshot_file.write(self._files, path, header, raw)
        if self.world_size == 1:
            self.tidy(position)
        elif self.rank == 0:
            self._own = (position, os.path.basename(path), digest)
        else:
            # Rank 0 reads the hash here, instead of the whole part.
            write_whole(self._files, path + HASH, [digest.encode("ascii")])
        return path

    def commit(self):
        """On rank 0: whether all parts of what it wrote last are there. If so, from now on it counts."""
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
        """On rank 0: at this position every rank takes a snapshot. They are never far apart, so it lies a little ahead."""
        make_folder(self.folder)
        write_whole(self._files, os.path.join(self.folder, AGREED), [b"%d" % position])

    def agreed(self):
        """The position that rank 0 named last; -1 where it has named none."""
        try:
            return int(read_own(os.path.join(self.folder, AGREED), 32))
        except (OSError, ValueError):
            return -1

    def tidy(self, newest):
        """The newest few stay, and nothing that a death left half-written. What one process finds beyond the newest is torn, or of a
        training that was not gone on with: it must not outlive what is taken now. Of several ranks another may be ahead by
        one: what lies there is being written, and what an earlier life left there was taken back at the beginning.
        """
        kept = set([position for position in self.positions(own=True) if position <= newest][: self._keep])
        for name in self._names():
            found = PART_OR_HASH.fullmatch(name) or COMMIT.fullmatch(name)
            left = _is_left_behind(name)
            ahead = found is not None and int(found[1]) > newest and int(found[found.re.groups]) == self.world_size > 1
            if left or (found is not None and int(found[1]) not in kept and not ahead):
                self._remove(name)

    def clear(self):
        """The training is over: there is nothing to go on from."""
        for name in self._names():
            ours = PART_OR_HASH.fullmatch(name) or COMMIT.fullmatch(name) or name in (AGREED, TRACE)
            if ours or _is_left_behind(name, by_us=True):
                self._remove(name)

    def _remove(self, name):
        """Nothing that another user put there."""
        path = os.path.join(self.folder, name)
        try:
            if is_own(path):
                self._files.remove(path)
        except OSError:
            pass

    # --- reading -------------------------------------------------------------------------------------------------

    def positions(self, own=False):
        """Of all snapshots that count, whole or not, newest first. With `own`, not of those that another user put there."""
        if self.world_size == 1:
            found = (PART.fullmatch(name) for name in self._names())
            known = [match for match in found if match and (match[2], match[3]) == ("0", "1")]
        else:
            found = (COMMIT.fullmatch(name) for name in self._names())
            known = [match for match in found if match and int(match[2]) == self.world_size]
        counted = {int(match[1]) for match in known if not own or is_own(os.path.join(self.folder, match[0]))}
        return sorted(counted, reverse=True)

    def begin(self, torch, torn=lambda path, why, foreign: None, holds=()):
        """The newest, to go on from. What ranks had begun beyond it is taken back, so that it is never joined to new parts."""
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
        """The newest that is whole in all of its parts, or None. `torn` is told of each that is passed over, why, and whether because another
        user put it there. A state that does not hold all of these is somebody else's.
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
            raise CorruptSnapshot("it does not say where it belongs")
        if holds and not (isinstance(state, dict) and all(isinstance(state.get(name), dict) for name in holds)):
            raise CorruptSnapshot("it is of something else")
        if self.world_size > 1:
            self._check_the_others(position, own, digest)
        return Snapshot(own, header, state, digest)

    def _check_the_others(self, position, own, digest):
        """Every rank reads every part: all must come to the same answer, without asking one another."""
        try:
            text = read_own(os.path.join(self.folder, commit_name(position, self.world_size)), 1 << 20)
            parts = dict(json.loads(text)["parts"])
        except OfAnotherUser as error:
            raise NotOurs("what holds its parts together: %s" % error.strerror) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptSnapshot("what holds its parts together cannot be read: %s" % error) from None
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
