"""Find secrets in text, and replace them: by the name that a value has, by its shape, and wherever a known value comes up again.

The probe redacts with this what it writes; the supervisor redacts its record, its plans and its reports with the same code.
Every pattern needs time in proportion to the length of the text: a name begins only where a word begins, and is bounded.
"""

import os
import re

MASK = "***"
MIN_LENGTH = 6
"""A shorter value is replaced where its name stands, and nowhere else: it would be found in innocent text."""
MAX_SCANNED = 200000
"""Characters of one text that are searched. What lies beyond is cut off."""
MAX_NAME = 200
MAX_PARTS = 16
"""`--set=a=b=c`: names in front of a value."""

_SECRET_WORDS = frozenset(
    (
        *("key", "apikey", "accesskey", "secretkey", "privatekey", "token", "apitoken", "accesstoken", "authtoken"),
        *("secret", "secrets", "credential", "credentials", "auth", "authorization"),
        *("password", "passwords", "passwd", "passwort", "pwd", "passphrase"),
    )
)
_WEAK_WORDS = frozenset(
    ("key", "token", "auth", "secret", "secrets", "pwd", "credential", "credentials", "authorization")
)
"""Alone they are ordinary words in a sentence or a line of code: `sorted(key=len)`, `unexpected token: x`."""
_HARMLESS_WORDS = {
    "token": frozenset(("pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "image", "num", "max", "per")),
    "key": frozenset(
        (
            *("num", "value", "values", "image", "images", "label", "labels", "text", "caption", "sort", "dim", "size"),
            *("padding", "mask", "frame", "frames", "primary", "group", "index", "input", "output", "target", "column"),
        )
    ),
}
"""`--pad-token` names a word of a vocabulary, `--image-key` a column: no secrets."""
_NO_VALUES = frozenset(
    ("error", "errors", "exception", "warning", "file", "path", "dir", "folder", "type", "env", "length")
)
"""What follows `KeyError: ` is a message; `--token-file` and `API_KEY_PATH` say where a secret is."""
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_A_WORD = re.compile(r"[^A-Za-z0-9]+")
_PROPERTY = re.compile(r"-[A-Z](?=[A-Za-z])")
"""`-Dpassword=...`: the letter is the option, of java, cmake and gradle; the name begins after it."""

_HARMLESS = re.compile(
    r"\d{1,5}|[+-]?\d{0,8}\.\d{1,8}|true|false|none|null|yes|no|on|off|nan|-?inf|\*\*\*|\$\w+|\$\{\w+\}|%\w+%|",
    re.IGNORECASE,
)
"""`--num-key-value-heads 8` is no secret, and `$TOKEN` only names one."""

_RUNS_A_PROGRAM = re.compile(r"-[a-z]{0,8}c")
"""`bash -lc`, `python -c`: the next argument is a program of its own."""
_NAME = re.compile(r"[-+~]{0,2}[A-Za-z_][\w.\-/@]{0,99}")

# A name begins where a word begins: without that, a long word would be tried from each of its letters.
_PAIR = re.compile(
    r"""(?P<before>[?&]|(?<![\w.\-/]))(?P<name>-{0,2}[A-Za-z_][\w.\-]{0,99})"""
    r"""(?P<sep>\\?["']?\s{0,3}(?:=(?!=)|:(?!//))\s{0,3}(?P<scheme>(?:bearer|basic|token)\s{1,3})?|\s{1,5})""",
    re.IGNORECASE,
)
"""NAME=, "name": , name: , Authorization: Bearer , --name ; the value follows."""
_QUOTED = re.compile(r"""\\"([^"\\]{0,4000})\\"|"([^"]{0,4000})"|'([^']{0,4000})'""")
_PLAIN = re.compile(r"""[^\s"';&|]+""")
_CODE = re.compile(r"[()\[\]{},]")

_URL_PASSWORD = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]{0,30}://)([^/\s:@]{0,300})(:[^/\s]{1,2000})?@")
_BEARER = re.compile(r"\b(bearer|basic)(\s{1,5})([\w.~+/=-]{8,})", re.IGNORECASE)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-(?=[A-Za-z_-]{0,80}\d)[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_\w{30,}|glpat-[\w-]{15,}|A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Za-z])|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|nvapi-[\w-]{40,}|r8_[A-Za-z0-9]{30,}|ya29\.[\w-]{20,})"
    r"|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|(?<=hooks\.slack\.com/services/)[\w/]{20,}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)
"""Tokens that can be told by their look, and private keys."""
_IN_URLS = frozenset(("sig", "signature"))


def names_a_secret(name: str) -> bool:
    """Whole words only: `--api-key`, `wandb.token` and `dbPassword` do; `--keypoints`, `--tokenizer` and `monkey` do not."""
    if len(name) > MAX_NAME:
        return False
    return bool(_secret_words(name) or (_PROPERTY.match(name) and _secret_words(name[2:])))


def _secret_words(name):
    words = frozenset(word.lower() for word in _NOT_A_WORD.split(_WORD_STARTS.sub("-", name)) if word)
    secret = _SECRET_WORDS & words
    if _NO_VALUES & words:
        return frozenset()
    if len(secret) == 1:
        for word, harmless in _HARMLESS_WORDS.items():
            if word in secret and harmless & words:
                return frozenset()
    return secret


def _is_weak(name):
    """Whether the name is a single word that also stands in ordinary sentences."""
    words = [word.lower() for word in _NOT_A_WORD.split(_WORD_STARTS.sub("-", name)) if word]
    return len(words) == 1 and words[0] in _WEAK_WORDS


def _looks_random(value):
    return len(value) >= 16 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def _is_place(value):
    """PWD, SSH_AUTH_SOCK and `--ssh-key ~/.ssh/id` sound like secrets, and are places."""
    if "/" not in value or len(value) > 4096 or "\0" in value:
        return False
    try:
        return os.path.lexists(os.path.expanduser(value))
    except (OSError, ValueError):
        return False


def _is_secret(value):
    return not _HARMLESS.fullmatch(value) and not _is_place(value)


def readable(text: str) -> str:
    """Text that can be encoded: bytes in a name that are no UTF-8 become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "replace").decode("utf-8", "replace")
    return text


def _is_escaped(text):
    return not any("\ud800" <= c < "\udc80" or "\udd00" <= c <= "\udfff" for c in text)


class Redactor(object):
    """Knows the values that are secrets: those of the environment and of the command, by name and by shape."""

    def __init__(self, commands=(), environ=None, places=()) -> None:
        self._found: set[str] = set()
        self._known = None
        self._places = [place for place in places if place]
        for name, value in dict(environ or {}).items():
            if names_a_secret(name) and _is_secret(value):
                self._note(value)
                self._scan(value, strict=True)
            else:
                self._scan(value, strict=False)
        for command in commands:
            self.command(command)

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(value for value in self._found if len(value) >= MIN_LENGTH)

    def _note(self, value):
        """Returns the mask, so that it can stand in an expression."""
        value = readable(value)
        if value not in self._found:
            self._found.add(value)
            if "\n" in value:  # a key of several lines is printed line by line
                self._found.update(line.strip() for line in value.split("\n") if len(line.strip()) >= 20)
            self._known = None
        return MASK

    def _patterns(self):
        """Two patterns: values that occur nowhere by chance, and ordinary words, which are replaced in sentences only."""
        if self._known is None:
            values = sorted(self.secrets, key=lambda value: (-len(value), value))
            distinct = [value for value in values if self._is_distinct(value)]
            ordinary = [value for value in values if value not in frozenset(distinct)]
            self._known = (
                re.compile("|".join(map(re.escape, distinct))) if distinct else None,
                re.compile("|".join(r"(?<!\w)%s(?!\w)" % re.escape(value) for value in ordinary)) if ordinary else None,
            )
        return self._known

    def _is_distinct(self, value):
        """`python`, `holdfast` and `experiment1` in the path of the run are somebody's passwords, and also words that we need."""
        if value.isdigit() or any(value in place for place in self._places):
            return False
        mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
        return len(value) >= 20 or (len(value) >= 8 and mixed)

    # --- what is replaced ---------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """A sentence, a line of output, a traceback."""
        text = _bounded(readable(text))
        distinct, ordinary = self._patterns()
        if distinct is not None:
            text = distinct.sub(MASK, text)
        if ordinary is not None:
            text = ordinary.sub(MASK, text)
        return self._scan(text, strict=False)

    def lines(self, lines: list[str]) -> list[str]:
        """Lines that belong together: a private key spans several."""
        if any("PRIVATE KEY" in line for line in lines):
            lines = self._scan("\n".join(lines), strict=False).split("\n")
        return [self.text(line) for line in lines]

    def name(self, text: str) -> str:
        """A path, a name or a value: ordinary words stay, so that it remains what it is."""
        text = _bounded(readable(text))
        distinct, _ = self._patterns()
        if distinct is not None:
            text = distinct.sub(MASK, text)
        return self._replace_shapes(text)

    def value(self, name: str, value: str) -> str:
        """A setting or a variable: all of it where its name says that it is a secret."""
        if names_a_secret(name):
            return self._note(value) if _is_secret(value) else self.name(value)
        return self._scan(self.name(value), strict=True)

    def command(self, argv) -> list[str]:
        redacted = []
        value_follows = is_program = False
        for argument in map(readable, argv):
            if value_follows and not argument.startswith("--"):
                redacted.append(self._note(argument) if _is_secret(argument) or not argument else argument)
                value_follows = False
                continue
            given = self._scan(argument, strict=True) if is_program else self._argument(argument)
            redacted.append(self.name(given))
            value_follows = argument.startswith("-") and "=" not in argument and names_a_secret(argument)
            is_program = _RUNS_A_PROGRAM.fullmatch(argument) is not None
        return redacted

    def _argument(self, text):
        """`--set=model.token=abc`: the first name that says so makes a secret of all that follows it."""
        begin = 0
        for _ in range(MAX_PARTS):
            end = text.find("=", begin, begin + 102)
            if end < 0 or not _NAME.fullmatch(text, begin, end):
                break
            if names_a_secret(text[begin:end]):
                value = text[end + 1 :]
                return text[: end + 1] + self._note(value) if value and _is_secret(value) else text
            begin = end + 1
        return text[:begin] + self._scan(text[begin:], strict=True)

    def _scan(self, text, strict):
        """`strict` where everything that is named like a secret is one: in commands and settings, not in sentences."""
        text = self._replace_shapes(_bounded(text))
        parts, copied, position, run_end = [], 0, 0, 0
        while True:
            match = _PAIR.search(text, position)
            if match is None:
                break
            begin = position = match.end()
            name, in_url = match["name"], bool(match["before"])
            if match["sep"].isspace() and (not name.startswith("-") or text.startswith("-", begin)):
                continue
            if not names_a_secret(name) and not (in_url and name.lower() in _IN_URLS):
                continue
            quoted = _QUOTED.match(text, begin)
            if quoted is not None:
                begin, end = quoted.span(quoted.lastindex)
                position = quoted.end()
            else:
                if run_end <= begin:  # once for all names in a row without a space
                    plain = _PLAIN.match(text, begin)
                    run_end = plain.end() if plain is not None else begin
                position = end = run_end
            sure = in_url or (strict and not (":" in match["sep"] and match["sep"][0] not in "\\\"'"))
            seen = text[begin : min(end, begin + 200)]
            weak = match["scheme"] is None and _is_weak(name) and (not sure or _CODE.search(seen) is not None)
            if (weak and not _looks_random(seen)) or not _is_secret(text[begin:end]):
                position = match.end()
                continue
            parts += [text[copied:begin], self._note(text[begin:end])]
            copied = end
        return "".join([*parts, text[copied:]])

    def _replace_shapes(self, text):
        if "://" in text:
            text = _URL_PASSWORD.sub(self._url, text)
        if len(text) >= 9:
            text = _BEARER.sub(self._bearer, text)
            text = _SHAPES.sub(lambda match: self._note(match[0]), text)
        return text

    def _url(self, match):
        scheme, user, password = match.groups()
        if password and password != ":" + MASK:
            return "%s%s:%s@" % (scheme, user, self._note(password[1:]))
        if not password and _looks_random(user):
            return "%s%s@" % (scheme, self._note(user))
        return match[0]

    def _bearer(self, match):
        how, space, value = match.groups()
        ordinary = value == value.lower() and not any(c.isdigit() for c in value)
        return match[0] if ordinary else how + space + self._note(value)


def _bounded(text):
    return text if len(text) <= MAX_SCANNED else text[:MAX_SCANNED] + "..."


_own = None


def of_this_process():
    """For the probe: what the training's own process has in its environment and on its command line. Never raises."""
    global _own
    if _own is None:
        try:
            import sys

            places = (os.getcwd(), sys.executable or "", sys.prefix, *_folders_of_ours())
            argv = getattr(sys, "orig_argv", None) or sys.argv
            _own = Redactor([argv], os.environ, places)
        except Exception:
            _own = Redactor()
    return _own


def _folders_of_ours():
    return [value for name, value in os.environ.items() if name.startswith("HOLDFAST_") and value.startswith("/")]
