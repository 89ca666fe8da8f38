"""Redaction of secrets in text: by the name of a value, by its format, and wherever a known value occurs again.

The probe redacts what it writes with this module. The supervisor uses the same code for its record, its plans and its
reports. Every pattern takes time proportional to the length of the text: a name begins only where a word begins, and
its length is limited.
"""

import json
import os
import re

from . import secret_programs
from .secret_names import is_plural, is_weak, may_name, names_a_secret
from .secret_shapes import SHAPES, looks_random
from .secret_values import COUNT, GROUP, MAX_VALUE, NAME, find_named_values, is_mixed, is_secret, names_next_word

MASK = "***"
MIN_LENGTH = 6
"""A shorter value is replaced only next to its name: elsewhere it would match ordinary text."""
MAX_SCANNED = 200000
"""Maximum number of characters of one text. The rest is cut off."""
MAX_PARTS = 16
"""Maximum number of names in front of a value, as in `--set=a=b=c`."""


_RUNS_A_PROGRAM = re.compile(r"-[a-z]{0,8}c")
"""`bash -lc`, `python -c`: the next argument is a program."""
_SLASHED = re.compile(r"/([A-Za-z][\w.\-]{0,60})[:=](?!/)(.+)", re.DOTALL)
"""`/password:...`, as in Windows programs. `/secrets:/run/secrets` is a mount."""

_ITEM = re.compile(r"""[^\s"',:=()\[\]{}]{8,}""")

_SCHEME = r"(?<![\w+.-])([A-Za-z][\w+.-]{0,30}://)"
_DATABASE = re.compile(
    r"(?<![\w+.-])((?:jdbc:)?(?:postgres\w{0,8}|mysql\w{0,3}|mariadb|mongodb|rediss?|amqps?|mssql|oracle|clickhouse|cockroachdb|snowflake|cassandra|neo4j|bolt|nats)"
    r"(?:\+\w{1,20})?://)([^/\s:@]{0,300}):([^\s\"'<>]{1,2000})@",
    re.IGNORECASE,
)
"""Only a password can contain an @ or a / before the last @."""
_URL_PASSWORD = re.compile(_SCHEME + r"([^/\s:@]{0,300})(:[^/\s]{0,2000})?@(?!sha256:)")
_URL_SLASHED = re.compile(
    _SCHEME + r"([^/\s:@\[]{1,300}):(?!\d{1,5}(?:[/?#]|$)|[{$<*])([^\s\"'<>@/]{1,300}/[^\s\"'<>@]{0,300})@"
)
_PRINTED_LINE_END = r"\r\n"
"""Four characters: `b'X-Api-Key: ...\\r\\nCookie: ...'`."""
_BEARER = re.compile(r"\b(bearer|basic)(\s{1,5})([\w.~+/=-]{8,})", re.IGNORECASE)
_COOKIE = re.compile(
    r"""(?<![\w-])(?:set-)?cookie2?(?:(?<=<cookie)|\\?["']\s{0,3},|\\?["']?[ \t]{0,3}:)[ \t]{0,3}(\\?["'])?(?=[^\s=;,"'\\]{1,200}=)""",
    re.IGNORECASE,
)
_COOKIE_VALUE = re.compile(r"(?:^|;)\s{0,5}([^=;\s]{1,200})=([^;\s]{8,})")
_COOKIE_ATTRIBUTES = frozenset(("path", "domain", "expires", "max-age", "samesite", "version", "priority"))
_NETRC = re.compile(r"\b(login\s{1,5}\S{1,200}\s{1,5}(?:account\s{1,5}\S{1,200}\s{1,5})?password\s{1,5})(\S{1,400})")
_ELEMENT = re.compile(r"<(?:\w{1,40}:)?([A-Za-z_][\w.\-]{0,99})(?:\s[^<>]{0,200})?>(?:<!\[CDATA\[)?([^<>]{1,4000})>?</")
_PIPED = re.compile(
    r"""\b(?:echo|printf)[ \t]{1,3}(?:-\w{1,3}[ \t]{1,3})?(?:"([^"\n]{1,400})"|'([^'\n]{1,400})'|([^\s"'|;&$`]{1,400}))[ \t]{0,3}"""
    r"""\|[^\n;|]{0,200}(?:-stdin\b|--with-token\b|sudo[ \t]-S|--passphrase-fd)"""
)
"""`echo ... | docker login --password-stdin`."""
_CALL = re.compile(
    r"""\b(?:(?:\w{0,20}login|authenticate|set_token|set_api_key)\(|(?P<two>\w{0,20}BasicAuth\(|HTTPDigestAuth\(|auth[ \t]{0,3}=[ \t]{0,3}\())\s{0,9}"""
    r"""(?P<user>["'][^"'\n]{0,200}["']\s{0,3},\s{0,9})?["'](?P<value>[^"'\n]{1,400})["']"""
)
"""`login('...')`, `auth=('user', '...')`."""


def _as_printed(value):
    """Return the forms that a value may take in a printed list, in JSON and in a URL. They differ if it contains
    quotes, backslashes or non-ASCII letters.
    """
    if value.isalnum() and value.isascii():
        return ()
    import urllib.parse

    return (
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        urllib.parse.quote(value, safe=""),
        urllib.parse.quote_plus(value),
    )


def readable(text: str) -> str:
    """Return text that can be encoded as UTF-8: undecodable bytes in a name become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "replace").decode("utf-8", "replace")
    return text


def _is_escaped(text):
    return not any("\ud800" <= c < "\udc80" or "\udd00" <= c <= "\udfff" for c in text)


class Redactor(object):
    """Replaces secrets. It knows those of the environment and of the command, by name and by format."""

    def __init__(self, commands=(), environ=None, places=()) -> None:
        self._secrets: set[str] = set()
        self._forms: set[str] = set()
        self._known_patterns = None
        self._places = [place for place in places if place]
        for name, value in dict(environ or {}).items():
            if names_a_secret(name) and is_secret(value):
                self._note(value)
                self._scan(value, strict=True)
            else:
                self._scan(value, strict=False)
        for command in commands:
            self.command(command)

    # --- known secrets ------------------------------------------------------------------------------------------------

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(value for value in self._secrets if len(value) >= MIN_LENGTH)

    def _note(self, value):
        """Remember a secret, and return the mask that replaces it."""
        value = readable(value)
        if value not in self._secrets:
            self._secrets.add(value)
            self._forms.update(_as_printed(value))
            if "\n" in value:  # a key with several lines is printed line by line
                self._secrets.update(line.strip() for line in value.split("\n") if len(line.strip()) >= 20)
            self._known_patterns = None
        return MASK

    def _note_all(self, value):
        """Remember a secret. If the value is a list or a table, remember each item."""
        if GROUP.fullmatch(value) is None:
            return self._note(value)
        for item in _ITEM.findall(value):
            if is_mixed(item):
                self._note(item)
        return MASK

    def _get_patterns(self):
        """Return two patterns: for distinct values, and for ordinary words, which are replaced in sentences only."""
        if self._known_patterns is None:
            forms = frozenset(form for form in self._forms if len(form) >= MIN_LENGTH)
            values = sorted(self.secrets | forms, key=lambda value: (-len(value), value))
            distinct = [value for value in values if self._is_distinct(value)]
            ordinary = [value for value in values if value not in frozenset(distinct)]
            self._known_patterns = (
                re.compile("|".join(map(re.escape, distinct))) if distinct else None,
                re.compile("|".join(r"(?<!\w)%s(?!\w)" % re.escape(value) for value in ordinary)) if ordinary else None,
            )
        return self._known_patterns

    def _is_distinct(self, value):
        """Return False for ordinary words: `python` or a folder of the run may be somebody's password."""
        if value.isdigit() or any(value in place for place in self._places):
            return False
        mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
        inner_capitals = any(c.islower() for c in value) and any(c.isupper() for c in value[1:])
        return len(value) >= 20 or (len(value) >= 8 and mixed) or (len(value) >= 12 and inner_capitals)

    # --- replacement --------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Redact a sentence, a line of output or a traceback."""
        return self._scan(self._replace_known(_truncate(readable(text))), strict=False)

    def _replace_known(self, text):
        distinct, ordinary = self._get_patterns()
        if distinct is not None:
            text = distinct.sub(MASK, text)
        if ordinary is not None:
            text = ordinary.sub(MASK, text)
        return text

    def lines(self, lines: list[str]) -> list[str]:
        """Redact lines together: a private key spans several, and a value may be on the line after its name."""
        joined = "\n".join(lines)
        if len(joined) <= MAX_SCANNED and joined.count("\n") == max(len(lines) - 1, 0):
            lines = self._scan(self._replace_known(readable(joined)), strict=False).split("\n") if lines else []
        return [self.text(line) for line in lines]

    def name(self, text: str) -> str:
        """Redact a path, a name or a value. Ordinary words are kept, so that it stays valid."""
        text = _truncate(readable(text))
        distinct, _ = self._get_patterns()
        if distinct is not None:
            text = distinct.sub(MASK, text)
        return self._replace_shapes(text)

    def value(self, name: str, value: str) -> str:
        """Redact a setting or a variable: the whole value if its name is that of a secret."""
        if names_a_secret(name):
            return self._note(value) if is_secret(value) else self.name(value)
        return self._scan(self.name(value), strict=True)

    def command(self, argv) -> list[str]:
        redacted = []
        arguments = list(map(readable, argv))
        passwords = dict(secret_programs.secret_parts(arguments))
        option, is_program = "", False
        for number, argument in enumerate(arguments):
            if number in passwords:
                begin = passwords[number]
                value = argument[begin:]
                redacted.append(argument[:begin] + self._note(value) if is_secret(value) else argument)
                option = ""
                continue
            if option and not argument.startswith("-" if option == "more" else "--"):
                redacted.append(self._note(argument) if self._is_value(option, argument) or not argument else argument)
                option = "more" if option == "more" or is_plural(option) else ""
                continue
            scanned = self._scan(argument, strict=True) if is_program else self._mask_argument(argument)
            redacted.append(self.name(scanned))
            after = arguments[number + 1 : number + 2]
            if after and number + 1 not in passwords and names_next_word(argument, after[0]):
                passwords[number + 1] = 0
            option = argument if argument.startswith("-") and "=" not in argument and names_a_secret(argument) else ""
            is_program = _RUNS_A_PROGRAM.fullmatch(argument) is not None
        return redacted

    @staticmethod
    def _is_value(option, value):
        return is_secret(value) and not (option.lstrip("-") in ("tokens", "more") and COUNT.fullmatch(value))

    def _mask_argument(self, text):
        """Redact one argument. In `--set=model.token=abc`, everything after the first secret name is a secret."""
        slashed = _SLASHED.fullmatch(text)
        if slashed is not None and names_a_secret(slashed[1]) and is_secret(slashed[2]):
            return text[: slashed.start(2)] + self._note(slashed[2])
        begin = 0
        for _ in range(MAX_PARTS):
            end = text.find("=", begin, begin + 102)
            if end < 0 or not NAME.fullmatch(text, begin, end):
                break
            if names_a_secret(text[begin:end]):
                value = text[end + 1 :]
                has_secret = value and self._is_value(text[begin:end], value)
                return text[: end + 1] + self._note(value) if has_secret else text
            begin = end + 1
        return text[:begin] + self._scan(text[begin:], strict=True)

    def _scan(self, text, strict):
        """Replace all secrets in a text. With `strict`, everything that is named like a secret is one: this holds for
        commands and settings, but not for sentences.
        """
        text = self._replace_shapes(_truncate(text))
        if _PRINTED_LINE_END in text:  # headers printed as bytes: each one is a separate line
            return _PRINTED_LINE_END.join(self._scan(part, strict) for part in text.split(_PRINTED_LINE_END))
        if secret_programs.MENTIONED.search(text) is not None:
            text = self._replace_in_programs(text)
        if "|" in text:
            text = _PIPED.sub(self._mask_piped, text)
        if not may_name(text) and "login" not in text:
            return text
        text = _CALL.sub(self._mask_call, text)
        text = self._replace_cookies(text)
        text = _NETRC.sub(lambda match: match[1] + self._note(match[2]), text)
        if "</" in text:
            text = _ELEMENT.sub(self._mask_element, text)
        return self._replace_named(text, strict)

    def _replace_named(self, text, strict):
        parts, copied = [], 0
        for begin, end in find_named_values(text, strict):
            parts += [text[copied:begin], self._note_all(text[begin:end])]
            copied = end
        return "".join([*parts, text[copied:]])

    def _replace_in_programs(self, text):
        found = list(secret_programs.WORD.finditer(text))
        parts, copied = [], 0
        for number, offset in secret_programs.secret_parts([match[0] for match in found]):
            begin, end = found[number].start() + offset, found[number].end()
            quote = text[end - 1]
            if quote in "\"'" and end - begin > 1:
                end -= 1
                begin += text[begin] == quote
            if begin < end and is_secret(text[begin:end]):
                parts += [text[copied:begin], self._note(text[begin:end])]
                copied = end
        return "".join([*parts, text[copied:]])

    def _replace_cookies(self, text):
        """Replace all cookies up to the end of the header."""
        parts, copied = [], 0
        while True:
            match = _COOKIE.search(text, copied)
            if match is None:
                break
            begin = match.end()
            quote = match[1] or text[max(match.start() - 1, 0) : match.start()]
            line_end = text.find("\n", begin, begin + MAX_VALUE)
            line_end = min(len(text), begin + MAX_VALUE) if line_end < 0 else line_end
            end = text.find(quote, begin, line_end) if quote and quote[-1] in "\"'" else line_end
            end = line_end if end < 0 else end
            for name, value in _COOKIE_VALUE.findall(text[begin:end]):
                if name.lower() not in _COOKIE_ATTRIBUTES and is_secret(value):
                    self._note(value)
            parts += [text[copied:begin], MASK]
            copied = end
        return "".join([*parts, text[copied:]])

    def _mask_piped(self, match):
        return self._mask_group(match, match.lastindex) if is_secret(match[match.lastindex]) else match[0]

    def _mask_call(self, match):
        value = match["value"]
        is_sure = (match["two"] and match["user"]) or looks_random(value)
        return self._mask_group(match, "value") if is_sure and is_secret(value) else match[0]

    def _mask_group(self, match, group):
        begin, end = (position - match.start() for position in match.span(group))
        return match[0][:begin] + self._note(match[group]) + match[0][end:]

    def _mask_element(self, match):
        name, value = match.groups()
        value = value.strip()
        if not value or not names_a_secret(name) or not is_secret(value) or (is_weak(name) and not looks_random(value)):
            return match[0]
        self._note(value.partition("]]")[0])
        return match[0].replace(value, MASK)

    def _replace_shapes(self, text):
        if "://" in text and "@" in text:
            text = _DATABASE.sub(lambda match: "%s%s:%s@" % (match[1], match[2], self._note(match[3])), text)
            text = _URL_PASSWORD.sub(self._mask_url, text)
            text = _URL_SLASHED.sub(lambda match: "%s%s:%s@" % (match[1], match[2], self._note(match[3])), text)
        if len(text) >= 9:
            text = _BEARER.sub(self._mask_bearer, text)
            text = SHAPES.sub(lambda match: self._note(match[0]), text)
        return text

    def _mask_url(self, match):
        scheme, user, password = match.groups()
        if password and password not in (":", ":" + MASK):
            if re.match(r":\d{1,5}[\"',]", password):  # a port, and the end of the URL
                return match[0]
            return "%s%s:%s@" % (scheme, user, self._note(password[1:]))
        if password != ":" + MASK and looks_random(user):  # the user name is the key
            return "%s%s%s@" % (scheme, self._note(user), password or "")
        return match[0]

    def _mask_bearer(self, match):
        scheme, space, value = match.groups()
        is_ordinary = value == value.lower() and not any(c.isdigit() for c in value)
        return match[0] if is_ordinary else scheme + space + self._note(value)


def _truncate(text):
    return text if len(text) <= MAX_SCANNED else text[:MAX_SCANNED] + "..."


_process_redactor = None


def get_process_redactor():
    """Return the redactor that knows the secrets of this process's environment and command line. Never raises."""
    global _process_redactor
    if _process_redactor is None:
        try:
            import sys

            places = (os.getcwd(), sys.executable or "", sys.prefix, *_holdfast_folders())
            argv = getattr(sys, "orig_argv", None) or sys.argv
            _process_redactor = Redactor([argv], os.environ, places)
        except Exception:
            _process_redactor = Redactor()
    return _process_redactor


def _holdfast_folders():
    return [value for name, value in os.environ.items() if name.startswith("HOLDFAST_") and value.startswith("/")]
