"""Which names say that their value is a secret: `--api-key`, `PGPASSWORD`, `wandb.token`; not `--keypoints` and `--max-tokens`."""

import re

MAX_NAME = 200

SECRET_WORDS = frozenset(
    (
        *("key", "token", "secret", "secrets", "credential", "credentials", "creds", "auth", "oauth", "authorization"),
        *(
            "password",
            "passwords",
            "passwd",
            "passwds",
            "passwort",
            "kennwort",
            "pwd",
            "pswd",
            "passphrase",
            "passphrases",
        ),
        *("passcode", "bearer", "jwt", "cookie", "mnemonic"),
    )
)
_WITH_KEYS = frozenset(
    (
        *("api", "access", "secret", "private", "auth", "ssh", "encryption", "encrypt", "signing", "account"),
        *("license", "shared", "client", "master", "deploy", "service", "storage", "app", "admin"),
    )
)
_WITH_TOKENS = frozenset(
    (
        *("api", "access", "auth", "oauth", "refresh", "bearer", "secret", "session", "csrf", "xsrf", "jwt", "login"),
        *("bot", "user", "admin", "client", "app", "service", "deploy", "personal", "webhook", "security", "id"),
        *("hf", "hub", "huggingface", "gh", "git", "github", "gitlab", "npm", "pypi", "wandb", "slack", "telegram"),
        *("discord", "openai", "neptune", "comet", "kaggle", "vault", "aws"),
        *("identity", "registry", "registration", "sso", "device", "push", "verification", "reset", "invite", "join"),
        *("cluster", "node", "sas", "sts", "pat", "account", "proxy", "server"),
    )
)
_WITH_PASS = frozenset(
    (
        *("db", "database", "sql", "mysql", "pg", "postgres", "mongo", "redis", "smtp", "imap", "mail", "email", "ftp"),
        *("sftp", "ssh", "sudo", "user", "admin", "root", "http", "https", "proxy", "ldap", "login", "key", "store"),
        *("wifi", "default", "rabbitmq", "basic", "auth", "service", "server", "client", "account"),
    )
)
"""`DB_PASS` is a password, `forward_pass` is not."""
_SHORT = frozenset(("pass", "pw", "psk"))
_GLUED = re.compile(
    r"[a-z0-9]{0,40}(?:password|passwd|passwort|passphrase|passcode|secret|credential)s?"
    r"|[a-z0-9]{1,40}(?<!old)pwd"
    r"|[a-z0-9]{0,40}(?:%s)keys?|[a-z0-9]{0,40}(?:%s)tokens?|[a-z0-9]{0,20}(?:%s)pass|(?:basic|http|proxy)auth"
    % tuple("|".join(sorted(words)) for words in (_WITH_KEYS, _WITH_TOKENS - {"id"}, _WITH_PASS))
)
"""Words that are written as one: PGPASSWORD, mysqlpwd, apikey, authtoken, dbpass. Not `subtoken`, `bypass` and `hotkey`."""
WEAK_WORDS = frozenset(
    (
        *(
            "key",
            "token",
            "tokens",
            "auth",
            "oauth",
            "secret",
            "secrets",
            "pwd",
            "pass",
            "pw",
            "psk",
            "credential",
            "credentials",
        ),
        *("creds", "authorization", "bearer", "jwt", "cookie", "signature"),
    )
)
"""Alone they are ordinary words in a sentence or a line of code: `sorted(key=len)`, `unexpected token: x`."""
_HARMLESS_WORDS = {
    "token": frozenset(
        (
            *(
                "pad",
                "eos",
                "bos",
                "unk",
                "sep",
                "cls",
                "mask",
                "special",
                "image",
                "num",
                "max",
                "min",
                "per",
                "start",
            ),
            *(
                "end",
                "stop",
                "next",
                "first",
                "last",
                "begin",
                "new",
                "text",
                "video",
                "audio",
                "query",
                "class",
                "ids",
            ),
            *("dim", "count", "size", "embedding", "embeddings", "loss", "accuracy", "acc", "level", "wise"),
        )
    ),
    "key": frozenset(
        (
            *("num", "value", "values", "image", "images", "label", "labels", "text", "caption", "sort", "dim", "size"),
            *("padding", "mask", "frame", "frames", "primary", "group", "index", "input", "output", "target", "column"),
            *("foreign", "cache", "state", "metric", "loss", "query", "monitor", "point", "points", "bias", "proj"),
        )
    ),
}
"""`--pad-token` names a word of a vocabulary, `--image-key` a column: no secrets."""
_NO_VALUES = frozenset(
    (
        *("error", "errors", "exception", "warning", "file", "path", "dir", "folder", "type", "env", "length"),
        *("exists", "required", "valid", "invalid", "expires", "expired", "expiry", "stdin", "prompt", "name", "names"),
        *("count", "policy", "enabled", "process", "helper", "provider"),
    )
)
"""What follows `KeyError: ` is a message; `--token-file` and `API_KEY_PATH` say where a secret is."""
_PLURAL = re.compile(r"(?:keys|tokens|passwords|passwds|passphrases|secrets|credentials|creds)$", re.IGNORECASE)
_MAY_BE = re.compile(
    r"pass|pwd|pswd|pw|psk|key|tok|secret|auth|cred|cookie|jwt|bearer|mnemonic|kennwort|signature|\bsig\b",
    re.IGNORECASE,
)
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_A_WORD = re.compile(r"[^A-Za-z0-9]+")
_PROPERTY = re.compile(r"-[A-Z](?=[A-Za-z])")
"""`-Dpassword=...`: the letter is the option, of java, cmake and gradle; the name begins after it."""
_IN_ADDRESSES = frozenset(("sig", "signature", "code", "sid", "sessionid", "ticket"))


def may_name(text):
    """A quick look: whether it is worth asking further."""
    return _MAY_BE.search(text) is not None


def names_a_secret(name: str) -> bool:
    """Whole words, and those written as one of unmistakable ones: see the top."""
    if len(name) > MAX_NAME or not may_name(name):
        return False
    return _says_so(name) or (_PROPERTY.match(name) is not None and _says_so(name[2:]))


def names_one_in_address(name):
    """`?sig=` and `&X-Amz-Signature=` prove who asks, as a password does."""
    words = _words(name)
    return bool(words) and (words[-1] == "signature" or (len(words) == 1 and words[0] in _IN_ADDRESSES))


def is_weak(name):
    """Whether the name is a single word that also stands in ordinary sentences."""
    words = _words(name)
    return bool(words) and (words[-1] == "signature" or (len(words) == 1 and words[0] in WEAK_WORDS))


def is_plural(name):
    """`--api-keys A B C`: more than one value follows."""
    return _PLURAL.search(name) is not None


def _words(name):
    return [word.lower() for word in _NOT_A_WORD.split(_WORD_STARTS.sub("-", name)) if word]


def _says_so(name):
    ordered = _words(name)
    words = frozenset(ordered)
    if _NO_VALUES & words or (ordered[-1:] == ["id"] and "token" in words):
        return False
    secret = {word for word in ordered if word in SECRET_WORDS or _GLUED.fullmatch(word)}
    if len(secret) == 1:
        for word, harmless in _HARMLESS_WORDS.items():
            if word in secret and harmless & words:
                return False
    return bool(secret) or _by_company(ordered, words)


def _by_company(ordered, words):
    """`keys`, `tokens` and `pass` are secrets beside some words only; `tokens`, `pass`, `pw`, `psk` and `signature` also alone, weakly."""
    if "keys" in words and _WITH_KEYS & words:
        return True
    if "tokens" in words and (len(ordered) == 1 or (_WITH_TOKENS & words and not _HARMLESS_WORDS["token"] & words)):
        return True
    if not ordered:
        return False
    return ordered[-1] == "signature" or (ordered[-1] in _SHORT and (len(ordered) == 1 or ordered[-2] in _WITH_PASS))
