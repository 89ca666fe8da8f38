"""Well-known programs whose options, or whose first word, are a password, though no name says so: `curl -u user:PASSWORD`."""

import os
import re

NEXT, GLUED, USER, NAMED, FIRST, LOGON = "next", "glued", "user", "named", "first", "logon"
"""Where the value is: the next word or the rest of this one; the rest of this one only; behind the user's name or
that of a cookie; the first word; behind the user in the first word."""

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
"""Programs, the word that must come before, options, and where the value is."""
_NAMES = frozenset(name for names, *_ in PROGRAMS for name in names)
MENTIONED = re.compile(r"(?<![\w.-])(?:%s)(?=[\s\"'])" % "|".join(sorted(map(re.escape, _NAMES), reverse=True)))
WORD = re.compile(r"""(?:[^\s"';&|()<>]|"[^"]{0,2000}"|'[^']{0,2000}')+|[;&|()]|\n""")
"""Words of a shell. A quote that is not closed is no part of one."""
_ENDS = frozenset((";", "&", "|", "(", ")", "\n"))
_BEHIND = {
    USER: re.compile(r"([^:%,\s]{0,200}[:%,])\S"),
    NAMED: re.compile(r"([^=;\s]{0,200}=)\S"),
    LOGON: re.compile(r"([^/\s]{1,200}/)\w"),
}
MIN_FIRST = 16


def secret_parts(words):
    """(number, offset): of these words, from that character on, it is a password."""
    rules, met, follows = [], frozenset(), None
    for number, word in enumerate(words):
        bare = word.strip("\"'")
        if word in _ENDS:
            rules, follows = [], None
            continue
        if follows is not None:
            how, follows = follows, None
            offset = None if bare.startswith("--") else _behind(word, 0, how)
            if offset is not None:
                yield number, offset
                continue
        name = os.path.basename(bare) if len(bare) < 200 else ""
        if name in _NAMES:
            rules, met = [rule for rule in PROGRAMS if name in rule[0]], frozenset()
        elif rules:
            offset, follows = _by_rules(word, bare, [rule for rule in rules if rule[1] is None or rule[1] in met])
            if offset is not None:
                yield number, offset
            if not word.startswith("-") and len(met) < 8:
                met |= {bare}


def _by_rules(word, bare, rules):
    """Where in this word a password begins, or else where the one of the next word is."""
    for _, _, options, how in rules:
        if how == FIRST:
            if not word.startswith("-"):
                return (0 if len(bare) >= MIN_FIRST and "://" not in bare else None), None
            continue
        offset = _option(word, options, how)
        if how == LOGON and not word.startswith("-"):
            offset = _behind(word, 0, how)
        if offset == len(word):
            return None, None if how == GLUED else how
        if offset is not None:
            return offset, None
    return None, None


def _option(word, options, how):
    """Where the value begins in this word; its length where it is the next one; None where the word is no such option."""
    for option in options:
        if word == option:
            return len(word)
        if option.startswith("--") and word.startswith(option + "="):
            return _behind(word, len(option) + 1, how)
        if not option.startswith("--") and len(option) == 2:
            if word.startswith(option):
                return _behind(word, 2, how)
            if how in _BEHIND and re.fullmatch(r"-[A-Za-z]{1,6}" + option[1], word):
                return len(word)
    return None


def _behind(word, begin, how):
    if how not in _BEHIND:
        return begin
    name = _BEHIND[how].match(word, begin)
    return name.end(1) if name is not None else None
