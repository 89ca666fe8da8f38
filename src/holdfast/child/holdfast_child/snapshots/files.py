"""What a snapshot asks of a file system, in one place, so that a test can stop it between any two of these."""

import os


class Files(object):
    def create(self, path):
        """A new file, open for writing; what was there is gone."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

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


def write_whole(files, path, chunks):
    """A file that is there with all of its content, or not there, whenever the machine stops."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
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


def _remove_quietly(files, path):
    try:
        files.remove(path)
    except OSError:
        pass
