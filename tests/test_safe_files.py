"""Files that somebody else may have put there are opened without waiting, bounded, and judged by their owner."""

from __future__ import annotations

import os

import pytest

from holdfast.storage import safe_files


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_only_regular_files_are_opened(tmp_path, kind):
    """A FIFO would make a plain open wait for ever, /dev/zero never ends."""
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="regular"):
        safe_files.open_regular(path)


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "it"
    path.write_bytes(b"12345")
    assert safe_files.read_bytes(path, 5) == b"12345"
    with pytest.raises(safe_files.FileTooLarge):
        safe_files.read_bytes(path, 4)


def test_a_link_is_followed_only_where_that_is_allowed(tmp_path):
    (tmp_path / "it").write_bytes(b"1")
    link = tmp_path / "link"
    link.symlink_to("it")
    assert safe_files.read_bytes(link, 5) == b"1"
    with pytest.raises(OSError):
        safe_files.read_bytes(link, 5, follow_links=False)


def test_a_path_with_a_nul_is_an_os_error(tmp_path):
    with pytest.raises(OSError):
        safe_files.open_regular(tmp_path / "a\0b")


def test_trusted_users(monkeypatch):
    """This user and root; under sudo also the one who called it."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("SUDO_UID", "54321")
    assert safe_files.trusted_users() == {0, 1000}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert safe_files.trusted_users() == {0, 54321}


def test_an_owner_whom_we_do_not_trust_is_named(tmp_path, monkeypatch):
    (tmp_path / "it").write_bytes(b"1")
    assert safe_files.untrusted_owner(tmp_path / "it") is None
    monkeypatch.setattr(safe_files, "trusted_users", lambda: frozenset({54321}))
    assert safe_files.untrusted_owner(tmp_path / "it") == safe_files.user_name(os.getuid())


def test_a_link_is_judged_by_both_owners(tmp_path):
    """A link of mine may lead to a stranger's file."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    target = tmp_path / "target"
    target.write_bytes(b"1")
    os.chown(target, 54321, 54321)
    (tmp_path / "link").symlink_to("target")
    assert safe_files.untrusted_owner(tmp_path / "link") == "uid 54321"
