"""The file system operations of a snapshot, in one place, so that a test can interrupt them between any two.

Others may be able to write to the folder: no link in it is followed, nothing is overwritten except by a rename, and
files of another user are not read.
"""

import errno
import os
import re
import stat

TEMPORARY = re.compile(r"\.holdfast-([0-9]{1,10})-[0-9a-f]{16}\.tmp")
"""Names that only Holdfast uses: they identify the incomplete files of a crashed process."""
MAX_PID = (1 << 31) - 1
_SAFE_FLAGS = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class OwnedByAnotherUser(OSError):
    """The file belongs to another user, so it is neither read nor removed."""


class Files(object):
    def create(self, path):
        """Create a file and open it for writing. Raise FileExistsError if anything exists at the path, including a
        link.
        """
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o600)

    def write(self, descriptor, data):
        left = memoryview(data).cast("B")
        while len(left):
            left = left[os.write(descriptor, left[: 1 << 24]) :]

    def sync(self, descriptor):
        """Flush the written data to the disk."""
        os.fsync(descriptor)

    def close(self, descriptor):
        os.close(descriptor)

    def rename(self, path, to):
        os.replace(path, to)

    def sync_folder(self, folder):
        """Flush the directory entries to the disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError:  # some network file systems cannot do this
            pass
        finally:
            os.close(descriptor)

    def remove(self, path):
        os.unlink(path)


def temporary_name(folder):
    """Return the path of a file that does not exist, with an unpredictable name."""
    return os.path.join(folder, ".holdfast-%d-%s.tmp" % (os.getpid(), os.urandom(8).hex()))


def write_atomically(files, path, chunks):
    """Write a file atomically: whenever the machine stops, the file is complete or does not exist."""
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
    """Replace the content of a file of the user. Raise OSError on failure; then the file is unchanged."""
    replace_with_chunks(path, [content])


def replace_with_chunks(path, chunks):
    """Replace the content of a file with the concatenated chunks, as `replace_content` does."""
    path = str(path)
    temporary = temporary_name(os.path.dirname(path) or ".")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        os.replace(temporary, path)
    except OSError:
        _remove_quietly(Files(), temporary)
        raise


def open_own(path, flags):
    """Return a descriptor of a regular file that belongs to this user. To be writable, it must have no other hard link.
    Never block, follow no link. Raise OSError.
    """
    descriptor = os.open(path, flags | _SAFE_FLAGS, 0o600)
    status = os.fstat(descriptor)
    reason, error = None, OSError
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif status.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
        reason = "it has another hard link"
    elif status.st_uid not in _trusted_users() and not _is_mapped_user(os.path.dirname(path), status.st_uid):
        reason, error = "it belongs to another user (uid %d)" % status.st_uid, OwnedByAnotherUser
    if reason is not None:
        os.close(descriptor)
        raise error(errno.EPERM, reason, path)
    return descriptor


def is_own(path):
    """Return whether this file, or the link itself, belongs to this user. Return False if it does not exist."""
    try:
        owner = os.lstat(path).st_uid
    except OSError:
        return False
    return owner in _trusted_users() or _is_mapped_user(os.path.dirname(path), owner)


def read_own(path, max_bytes):
    """Return at most `max_bytes` bytes of a file that belongs to this user. Raise OSError."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read(max_bytes)


def make_folder(path):
    """Create a folder that only this user can access, and its parents, which only this user can write to."""
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        _make_parents(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _make_parents(path):
    parent = os.path.dirname(path)
    if parent and parent != path and not os.path.isdir(parent):
        _make_parents(parent)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def find_foreign_owner(folder):
    """Return the uid of another user who owns this folder or a link to it; None if it belongs to this user. Raise
    OSError.
    """
    for status in (os.lstat(folder), os.stat(folder)):
        if status.st_uid not in _trusted_users() and not _is_mapped_user(folder, status.st_uid):
            return status.st_uid
    return None


def _trusted_users():
    """Return this user, root, and the user who called sudo, if any."""
    users = {os.geteuid(), 0}
    caller = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and re.fullmatch("[0-9]{1,10}", caller):
        users.add(int(caller))
    return users


def _is_mapped_user(folder, user):
    """Return whether files of this process get this owner on that file system: some map all files to another user (root
    on NFS is nobody).
    """
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
