"""Well-known programs that take a password as an argument, or in an option whose name does not show it.

For example `curl -u user:PASSWORD`.
"""

import os
import re

NEXT, GLUED, USER, NAMED, FIRST, LOGON = "next", "glued", "user", "named", "first", "logon"
"""Where the value is: the next word or the rest of this one; only the rest of this one; after the user name; after the
name of a cookie; the first word; after the user name in the first word."""

PROGRAMS = (
    (("curl",), None, ("-u", "--user", "-U", "--proxy-user"), USER),
    (("curl",), None, ("-b", "--cookie"), NAMED),
    (("http", "https"), None, ("-a", "--auth"), USER),
    (("smbclient", "lftp"), None, ("-u", "-U", "--user"), USER),
    (("openssl",), None, ("-passin", "-passout", "-pass"), USER),
    (("sshpass",), None, ("-p",), NEXT),
    (("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump", "7z", "7za"), None, ("-p",), GLUED),
    (("redis-cli",), None, ("-a", "--pass"), NEXT),
    (("mongo", "mongosh", "mongodump", "mongorestore", "rabbitmqadmin"), None, ("-p",), NEXT),
    (("ldapsearch", "ldapadd", "ldapmodify", "ldapwhoami"), None, ("-w",), NEXT),
    (("sqlcmd", "bcp", "tsql", "ipmitool", "zip", "unzip"), None, ("-P",), NEXT),
    (("docker", "podman", "nerdctl", "helm", "oc", "az", "skopeo", "buildah", "crane"), "login", ("-p",), NEXT),
    (("twine",), "upload", ("-p",), NEXT),
    (("oc",), "login", ("-t",), NEXT),
    (("wandb", "vault"), "login", (), FIRST),
    (("sqlplus", "sqlldr", "expdp", "impdp"), None, (), LOGON),
    (("ngrok",), "authtoken", (), FIRST),
    (("ngrok",), "add-authtoken", (), FIRST),
)
"""Programs, the word that must come before, the options, and where the value is."""
_NAMES = frozenset(name for names, *_ in PROGRAMS for name in names)
MENTIONED = re.compile(r"(?<![\w.-])(?:%s)(?=[\s\"'])" % "|".join(sorted(map(re.escape, _NAMES), reverse=True)))
WORD = re.compile(r"""(?:[^\s"';&|()<>]|"[^"]{0,2000}"|'[^']{0,2000}')+|[;&|()]|\n""")
"""Words of a shell command. An unclosed quote is not part of a word."""
_COMMAND_ENDS = frozenset((";", "&", "|", "(", ")", "\n"))
_PREFIXES = {
    USER: re.compile(r"([^:%,\s]{0,200}[:%,])\S"),
    NAMED: re.compile(r"([^=;\s]{0,200}=)\S"),
    LOGON: re.compile(r"([^/\s]{1,200}/)\w"),
}
MIN_FIRST_LENGTH = 16


def secret_parts(words):
    """Yield (number, offset) for each password: the number of its word, and where it begins in the word."""
    rules, earlier_words, follows = [], frozenset(), None
    for number, word in enumerate(words):
        bare = word.strip("\"'")
        if word in _COMMAND_ENDS:
            rules, follows = [], None
            continue
        if follows is not None:
            how, follows = follows, None
            offset = None if bare.startswith("--") else _find_value(word, 0, how)
            if offset is not None:
                yield number, offset
                continue
        name = os.path.basename(bare) if len(bare) < 200 else ""
        if name in _NAMES:
            rules, earlier_words = [rule for rule in PROGRAMS if name in rule[0]], frozenset()
        elif rules:
            active = [rule for rule in rules if rule[1] is None or rule[1] in earlier_words]
            offset, follows = _apply_rules(word, bare, active)
            if offset is not None:
                yield number, offset
            if not word.startswith("-") and len(earlier_words) < 8:
                earlier_words |= {bare}


def _apply_rules(word, bare, rules):
    """Return (where a password begins in this word, None), or (None, where it is in the next word)."""
    for _, _, options, how in rules:
        if how == FIRST:
            if not word.startswith("-"):
                return (0 if len(bare) >= MIN_FIRST_LENGTH and "://" not in bare else None), None
            continue
        offset = _match_option(word, options, how)
        if how == LOGON and not word.startswith("-"):
            offset = _find_value(word, 0, how)
        if offset == len(word):
            return None, None if how == GLUED else how
        if offset is not None:
            return offset, None
    return None, None


def _match_option(word, options, how):
    """Return where the value begins in this word, or None if the word is not such an option. If the value is the next
    word, return the length of this one.
    """
    for option in options:
        if word == option:
            return len(word)
        if option.startswith("--") and word.startswith(option + "="):
            return _find_value(word, len(option) + 1, how)
        if not option.startswith("--") and len(option) == 2:
            if word.startswith(option):
                return _find_value(word, 2, how)
            if how in _PREFIXES and re.fullmatch(r"-[A-Za-z]{1,6}" + option[1], word):
                return len(word)
    return None


def _find_value(word, begin, how):
    if how not in _PREFIXES:
        return begin
    name = _PREFIXES[how].match(word, begin)
    return name.end(1) if name is not None else None
