"""What a snapshot asks of a file system, in one place, so that a test can stop it between any two of these.

The folder may be one that others can write to: no link is followed in it, nothing that is there is written over except by a
rename, and what another user put there is not read.
"""

import errno
import os
import re
import stat

TEMPORARY = re.compile(r"\.holdfast-([0-9]{1,10})-[0-9a-f]{16}\.tmp")
"""Names that only we give: what a death left half-written is told by them."""
MAX_PID = (1 << 31) - 1
_CAREFULLY = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class OfAnotherUser(OSError):
    """What another user put there is neither read nor removed."""


class Files(object):
    def create(self, path):
        """A new file, open for writing. Raises FileExistsError where anything is there, a link too."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o600)

    def write(self, descriptor, data):
        left = memoryview(data).cast("B")
        while len(left):
            left = left[os.write(descriptor, left[: 1 << 24]) :]

    def sync(self, descriptor):
        """What was written is on the disk, not only on its way."""
        os.fsync(descriptor)

    def close(self, descriptor):
        os.close(descriptor)

    def rename(self, path, to):
        os.replace(path, to)

    def sync_folder(self, folder):
        """Names that were given are on the disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError:  # some network file systems cannot
            pass
        finally:
            os.close(descriptor)

    def remove(self, path):
        os.unlink(path)


def temporary_name(folder):
    """Of a file that does not exist, and whose name nobody can foresee."""
    return os.path.join(folder, ".holdfast-%d-%s.tmp" % (os.getpid(), os.urandom(8).hex()))


def write_whole(files, path, chunks):
    """A file that is there with all of its content, or not there, whenever the machine stops."""
    temporary = temporary_name(os.path.dirname(path) or ".")
    descriptor = files.create(temporary)
    try:
        try:
            for chunk in chunks:
                files.write(descriptor, chunk)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
    except OSError:
        _remove_quietly(files, temporary)
        raise
    files.sync_folder(os.path.dirname(path) or ".")


def replace_content(path, content):
    """A file of the user's with this content instead of its own. Raises OSError; then it is as it was."""
    replace_with(path, [content])


def replace_with(path, chunks):
    """As `replace_content`, with what all chunks hold."""
    path = str(path)
    temporary = temporary_name(os.path.dirname(path) or ".")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        os.replace(temporary, path)
    except OSError:
        _remove_quietly(Files(), temporary)
        raise


def open_own(path, flags):
    """A descriptor of a regular file of ours; to be written to, it must have no other name. Raises OSError; never waits, follows no link."""
    descriptor = os.open(path, flags | _CAREFULLY, 0o600)
    status = os.fstat(descriptor)
    why, error = None, OSError
    if not stat.S_ISREG(status.st_mode):
        why = "it is no regular file"
    elif status.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
        why = "it has another name elsewhere"
    elif status.st_uid not in _trusted() and not _is_us(os.path.dirname(path), status.st_uid):
        why, error = "it belongs to another user (uid %d)" % status.st_uid, OfAnotherUser
    if why is not None:
        os.close(descriptor)
        raise error(errno.EPERM, why, path)
    return descriptor


def is_own(path):
    """Whether this file, or a link of this name itself, is ours. What is not there is nobody's."""
    try:
        owner = os.lstat(path).st_uid
    except OSError:
        return False
    return owner in _trusted() or _is_us(os.path.dirname(path), owner)


def read_own(path, most):
    """At most so many bytes of such a file. Raises OSError."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def make_folder(path):
    """With the folders above it: itself for us alone, and those for nobody else to write to."""
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        _make_above(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _make_above(path):
    above = os.path.dirname(path)
    if above and above != path and not os.path.isdir(above):
        _make_above(above)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def owner_of(folder):
    """The uid of another user who owns this folder, or a link of this name; None where it is ours. Raises OSError."""
    for status in (os.lstat(folder), os.stat(folder)):
        if status.st_uid not in _trusted() and not _is_us(folder, status.st_uid):
            return status.st_uid
    return None


def _trusted():
    """This user, root, and under sudo the user who called it."""
    users = {os.geteuid(), 0}
    caller = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and re.fullmatch("[0-9]{1,10}", caller):
        users.add(int(caller))
    return users


def _is_us(folder, user):
    """Whether this is who we are on that file system: some give every file of ours to another user (root on NFS is nobody)."""
    temporary = temporary_name(folder)
    try:
        descriptor = Files().create(temporary)
    except OSError:
        return False
    try:
        return os.fstat(descriptor).st_uid == user
    finally:
        os.close(descriptor)
        _remove_quietly(Files(), temporary)


def _remove_quietly(files, path):
    try:
        files.remove(path)
    except OSError:
        pass
