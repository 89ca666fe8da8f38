"""Names whose value is a secret: `--api-key`, `PGPASSWORD`, `wandb.token`, but not `--keypoints` and `--max-tokens`."""

import re

MAX_NAME_LENGTH = 200


def _words(text):
    return frozenset(text.split())


SECRET_WORDS = _words("""
    key token secret secrets credential credentials creds auth oauth authorization password passwords passwd passwds
    passwort kennwort pwd pswd passphrase passphrases passcode bearer jwt cookie mnemonic
""")
_WITH_KEYS = _words("""
    api access secret private auth ssh encryption encrypt signing account license shared client master deploy service
    storage app admin
""")
_WITH_TOKENS = _words("""
    api access auth oauth refresh bearer secret session csrf xsrf jwt login bot user admin client app service deploy
    personal webhook security id hf hub huggingface gh git github gitlab npm pypi wandb slack telegram discord openai
    neptune comet kaggle vault aws identity registry registration sso device push verification reset invite join cluster
    node sas sts pat account proxy server
""")
_WITH_PASS = _words("""
    db database sql mysql pg postgres mongo redis smtp imap mail email ftp sftp ssh sudo user admin root http https proxy
    ldap login key store wifi default rabbitmq basic auth service server client account
""")
"""`DB_PASS` is a password, `forward_pass` is not."""
_SHORT_WORDS = frozenset(("pass", "pw", "psk"))
_COMPOUND = re.compile(
    r"[a-z0-9]{0,40}(?:password|passwd|passwort|passphrase|passcode|secret|credential)s?"
    r"|[a-z0-9]{1,40}(?<!old)pwd"
    r"|[a-z0-9]{0,40}(?:%s)keys?|[a-z0-9]{0,40}(?:%s)tokens?|[a-z0-9]{0,20}(?:%s)pass|(?:basic|http|proxy)auth"
    % tuple("|".join(sorted(words)) for words in (_WITH_KEYS, _WITH_TOKENS - {"id"}, _WITH_PASS))
)
"""Compounds written as one word: PGPASSWORD, mysqlpwd, apikey, authtoken, dbpass. Not `subtoken`, `bypass`, `hotkey`."""
WEAK_WORDS = _words("""
    key token tokens auth oauth secret secrets pwd pass pw psk credential credentials creds authorization bearer jwt
    cookie signature
""")
"""On their own these are ordinary words in a sentence or a line of code: `sorted(key=len)`, `unexpected token: x`."""
_HARMLESS_WORDS = {
    "token": _words("""
        pad eos bos unk sep cls mask special image num max min per start end stop next first last begin new text video
        audio query class ids dim count size embedding embeddings loss accuracy acc level wise
    """),
    "key": _words("""
        num value values image images label labels text caption sort dim size padding mask frame frames primary group
        index input output target column foreign cache state metric loss query monitor point points bias proj
    """),
}
"""`--pad-token` names a word of a vocabulary and `--image-key` a column: they are not secrets."""
_NOT_SECRET = _words("""
    error errors exception warning file path dir folder type env length exists required valid invalid expires expired
    expiry stdin prompt name names count policy enabled process helper provider
""")
"""A message follows `KeyError: `; `--token-file` and `API_KEY_PATH` name the location of a secret."""
_PLURAL = re.compile(r"(?:keys|tokens|passwords|passwds|passphrases|secrets|credentials|creds)$", re.IGNORECASE)
_MAY_BE = re.compile(
    r"pass|pwd|pswd|pw|psk|key|tok|secret|auth|cred|cookie|jwt|bearer|mnemonic|kennwort|signature|\bsig\b",
    re.IGNORECASE,
)
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_A_WORD = re.compile(r"[^A-Za-z0-9]+")
_PROPERTY = re.compile(r"-[A-Z](?=[A-Za-z])")
"""`-Dpassword=...`: the letter is the option of java, cmake or gradle; the name begins after it."""
_URL_PARAMETERS = frozenset(("sig", "signature", "code", "sid", "sessionid", "ticket"))


def may_name(text):
    """Return False if the text cannot contain the name of a secret. A fast test before the more expensive ones."""
    return _MAY_BE.search(text) is not None


def names_a_secret(name: str) -> bool:
    """Return True if the name contains a secret word, or a compound with one. See the top of this file."""
    if len(name) > MAX_NAME_LENGTH or not may_name(name):
        return False
    return _has_secret_words(name) or (_PROPERTY.match(name) is not None and _has_secret_words(name[2:]))


def names_a_url_secret(name):
    """Return True for URL parameters that authorize a request as a password does: `?sig=` and `&X-Amz-Signature=`."""
    words = _split_words(name)
    return bool(words) and (words[-1] == "signature" or (len(words) == 1 and words[0] in _URL_PARAMETERS))


def is_weak(name):
    """Return True if the name is a single word that also occurs in ordinary sentences."""
    words = _split_words(name)
    return bool(words) and (words[-1] == "signature" or (len(words) == 1 and words[0] in WEAK_WORDS))


def is_plural(name):
    """Return True if several values may follow: `--api-keys A B C`."""
    return _PLURAL.search(name) is not None


def _split_words(name):
    return [word.lower() for word in _NOT_A_WORD.split(_WORD_STARTS.sub("-", name)) if word]


def _has_secret_words(name):
    ordered = _split_words(name)
    words = frozenset(ordered)
    if _NOT_SECRET & words or (ordered[-1:] == ["id"] and "token" in words):
        return False
    secret = {word for word in ordered if word in SECRET_WORDS or _COMPOUND.fullmatch(word)}
    if len(secret) == 1:
        for word, harmless in _HARMLESS_WORDS.items():
            if word in secret and harmless & words:
                return False
    return bool(secret) or _is_secret_in_context(ordered, words)


def _is_secret_in_context(ordered, words):
    """Check words that are secrets only together with certain others: `keys`, `tokens` and `pass`. `tokens`, `pass`,
    `pw`, `psk` and `signature` are also weak names on their own.
    """
    if "keys" in words and _WITH_KEYS & words:
        return True
    if "tokens" in words and (len(ordered) == 1 or (_WITH_TOKENS & words and not _HARMLESS_WORDS["token"] & words)):
        return True
    if not ordered:
        return False
    return ordered[-1] == "signature" or (
        ordered[-1] in _SHORT_WORDS and (len(ordered) == 1 or ordered[-2] in _WITH_PASS)
    )
