"""Redaction of secrets in text: by the name of a value, by its format, and wherever a known value occurs again.

The probe redacts what it writes with this module. The supervisor uses the same code for its record, its plans and its
reports. Every pattern takes time proportional to the length of the text: a name begins only where a word begins, and
its length is limited.
"""

import json
import os
import re

from . import secret_programs
from .secret_names import is_plural, is_weak, may_name, names_a_secret, names_a_url_secret
from .secret_shapes import SHAPES, looks_random

MASK = "***"
MIN_LENGTH = 6
"""A shorter value is replaced only next to its name: elsewhere it would match ordinary text."""
MAX_SCANNED = 200000
"""Maximum number of characters of one text. The rest is cut off."""
MAX_PARTS = 16
"""Maximum number of names in front of a value, as in `--set=a=b=c`."""
MAX_VALUE = 4000

_HARMLESS = re.compile(
    r"\d{1,5}|[+-]?\d{0,8}\.\d{1,8}|true|false|none|null|yes|no|on|off|nan|-?inf|\*\*\*|\$\w+|\$\{[^}]{1,200}\}|%\w+%"
    r"|\$\(.{0,400}|\{[\w.]{1,100}\}|[\[\](){}<>,.:;*|]{0,8}|",
    re.IGNORECASE,
)
"""`--num-key-value-heads 8` is not a secret, and `$TOKEN` is only the name of one."""
_COUNT = re.compile(r"[\d,._]{1,20}[kmbt]?", re.IGNORECASE)
"""`--tokens 300B`."""
_CODE_OR_PROSE = re.compile(
    r"(?:os\.|getpass|self\.|args\.|opts?\.|cfg\.|conf\.|config\.|settings\.|get_\w{1,40}\(|input\(|str\(|environ|env\.)\S*"
    r"|(?:str|int|bytes|bool|float|string|secretstr|optional\[\w+\]|any)"
    r"|is|was|are|or|and|to|for|not|must|can|cannot|expected|required|missing|invalid|incorrect|wrong|failed|denied|<[\w -]{1,60}>",
    re.IGNORECASE,
)
"""Text after the name of a secret, in a line of code or in a sentence, that is not a value."""

_RUNS_A_PROGRAM = re.compile(r"-[a-z]{0,8}c")
"""`bash -lc`, `python -c`: the next argument is a program."""
_NAME = re.compile(r"[-+~]{0,2}[A-Za-z_][\w.\-/@]{0,99}")
_SLASHED = re.compile(r"/([A-Za-z][\w.\-]{0,60})[:=](?!/)(.+)", re.DOTALL)
"""`/password:...`, as in Windows programs. `/secrets:/run/secrets` is a mount."""

# A name begins where a word begins. Otherwise a match would be tried from each letter of a long word.
_PAIR = re.compile(
    r"""(?P<before>[?&]|(?<![\w.\-]))(?P<name>-{0,2}[A-Za-z_][\w.\-]{0,99})"""
    r"""(?P<sep>(?P<assign>\\?["']?\]?(?:[ \t]\[[^\[\]\n]{0,60}\](?=:))?[ \t]{0,30}(?:=>|:=|<<<|\?=|[=!]=(?=[ \t]{0,3}["'])|=(?!=)|:(?!//)|%3D|%3A))"""
    r"""(?:[ \t]{0,3}(?:str|bytes|SecretStr|Optional\[str\]|str[ \t]?\|[ \t]?None)[ \t]{0,3}=)?"""
    r"""(?:\s{0,80}(?=\\?["'])|[ \t]{0,30}(?:[|>][+-]?[ \t]{0,3}\n[ \t]{0,40})?)"""
    r"""(?:(?:!{1,2}[A-Za-z][A-Za-z_-]{0,30}|&[A-Za-z]\w{0,30})[ \t]{1,3}(?=\S)){0,2}"""
    r"""(?P<scheme>(?:bearer|basic|token|apikey|key|negotiate|ntlm|splunk|dpop|sso-key|(?P<long>digest|hawk|oauth|signature|aws4-hmac-sha256))"""
    r"""[ \t]{1,3})?"""
    r"""|(?P<listed>\\?["']\s{0,20},\s{0,40}(?=[bru]{0,2}\\?["']))"""
    r"""|(?P<table>[ \t]{0,40}[|\u2502\u2503][ \t]{0,40})"""
    r"""|(?P<blank>(?:\\\n|\s){1,40}(?P<item>(?<=[\n \t])-[ \t]{1,4}(?=[^\s-]))?))""",
    re.IGNORECASE,
)
"""NAME=, "name": , name: , name: !!str , ['name'] = , Authorization: Bearer , ('name', , name | , --name ; the value
follows."""
_QUOTED = re.compile(
    r"""\$?[bru]{0,2}(?:\\"((?:\\\\\\"|\\\\|\\[^"\\]|[^"\\]){0,4000})\\"|\\'([^'\\]{0,4000})\\'"""
    r"""|"((?:[^"\\]|\\[\s\S]){0,4000})"|'((?:[^'\\]|\\[\s\S]){0,4000})'|"([^"]{0,4000})"|'([^']{0,4000})')""",
    re.IGNORECASE,
)
_OPEN = re.compile(r"""\$?[bru]{0,2}\\?["']([^\n]{1,4000})""", re.IGNORECASE)
"""An unclosed quote: a truncated line, or a mistake."""
_GROUP = re.compile(r"\[[^\[\]]{1,1000}\]|\([^()\n]{1,1000}\)|\{[^{}]{1,1000}\}")
_ITEM = re.compile(r"""[^\s"',:=()\[\]{}]{8,}""")
_PLAIN = re.compile(r"""(?:[^\s"';&|]|(?<=\\)[ ;&|])+""")
_LINE = re.compile(r"""[^\n"']{1,400}""")
_CODE = re.compile(r"[()\[\]{},]")
_NAMED_VALUE = re.compile(
    r"""\\?["']?(?P<name>[A-Za-z_][\w.\-]{0,99})\\?["']?\s{0,40}[,;]?\s{0,40}\\?["']?value\\?["']?[ \t]{0,3}[:=][ \t]{0,3}""",
    re.IGNORECASE,
)
"""`{"name": "API_KEY", "value": ...}`, `<add key="ApiKey" value=...>`: the text after `name` or `key`."""
_NAME_FIELDS = frozenset(("name", "key", "id", "field", "variable"))
_QUALIFIER = re.compile(
    r"(?:api|access|secret|private|auth|client|signing|encryption|account|bot|hub)[ \t]{1,3}\Z", re.IGNORECASE
)
"""`API key: ...` is one name in two words."""
_VERB = re.compile(r"(?:(?:is|was|used|given|of)[ \t]{1,3})?", re.IGNORECASE)
_PROSE_NAMES = frozenset(("token", "tokens", "secret"))
"""Weak names whose value is replaced in prose if it looks random."""

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
_WRAPPER = re.compile(
    r"""(?!\w{0,40}(?:env|get|input|load|read|open|Path))[A-Za-z_]\w{0,40}\([ \t]{0,3}(?=[bru]{0,2}["'])"""
)
"""`SecretStr('...')`."""
_PUNCTUATION = ",.;:!?)]}"


def _is_path(value):
    """Return True for an existing path.

    PWD, SSH_AUTH_SOCK and `--ssh-key ~/.ssh/id` look like secrets, but contain paths.
    """
    if "/" not in value or len(value) > 4096 or "\0" in value:
        return False
    try:
        return os.path.lexists(os.path.expanduser(value))
    except (OSError, ValueError):
        return False


def _is_secret(value):
    return not _HARMLESS.fullmatch(value.rstrip(",)]}")) and not _is_path(value)


def _as_printed(value):
    """Return the forms that a value may take in a printed list, in JSON and in a URL.

    They differ if it contains quotes, backslashes or non-ASCII letters.
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


def _is_mixed(value):
    return len(value) >= 8 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def _repeats_name(name, value):
    """Return True if the value only repeats the name: `password=args.password`, `[--api-key API_KEY]`."""
    last = re.split(r"[.\[\]]", value.strip("[]<>(){},;:\"'"))[-1]
    return last.replace("-", "_").lower() == name.lstrip("-").replace("-", "_").rpartition(".")[2].lower()


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
            if names_a_secret(name) and _is_secret(value):
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
        if _GROUP.fullmatch(value) is None:
            return self._note(value)
        for item in _ITEM.findall(value):
            if _is_mixed(item):
                self._note(item)
        return MASK

    def _get_patterns(self):
        """Return two patterns: one for values that do not occur by chance, one for ordinary words.

        Ordinary words are replaced in sentences only.
        """
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
        """Return False for values that are also ordinary words.

        `python`, `holdfast` or a folder of the run may be somebody's password.
        """
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
        """Redact lines that belong together.

        A private key spans several lines, and a value may be on the line after its name.
        """
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
            return self._note(value) if _is_secret(value) else self.name(value)
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
                redacted.append(argument[:begin] + self._note(value) if _is_secret(value) else argument)
                option = ""
                continue
            if option and not argument.startswith("-" if option == "more" else "--"):
                redacted.append(self._note(argument) if self._is_value(option, argument) or not argument else argument)
                option = "more" if option == "more" or is_plural(option) else ""
                continue
            scanned = self._scan(argument, strict=True) if is_program else self._mask_argument(argument)
            redacted.append(self.name(scanned))
            after = arguments[number + 1 : number + 2]
            if after and number + 1 not in passwords and _names_next_word(argument, after[0]):
                passwords[number + 1] = 0
            option = argument if argument.startswith("-") and "=" not in argument and names_a_secret(argument) else ""
            is_program = _RUNS_A_PROGRAM.fullmatch(argument) is not None
        return redacted

    @staticmethod
    def _is_value(option, value):
        return _is_secret(value) and not (option.lstrip("-") in ("tokens", "more") and _COUNT.fullmatch(value))

    def _mask_argument(self, text):
        """Redact one argument. In `--set=model.token=abc`, everything after the first secret name is a secret."""
        slashed = _SLASHED.fullmatch(text)
        if slashed is not None and names_a_secret(slashed[1]) and _is_secret(slashed[2]):
            return text[: slashed.start(2)] + self._note(slashed[2])
        begin = 0
        for _ in range(MAX_PARTS):
            end = text.find("=", begin, begin + 102)
            if end < 0 or not _NAME.fullmatch(text, begin, end):
                break
            if names_a_secret(text[begin:end]):
                value = text[end + 1 :]
                is_secret = value and self._is_value(text[begin:end], value)
                return text[: end + 1] + self._note(value) if is_secret else text
            begin = end + 1
        return text[:begin] + self._scan(text[begin:], strict=True)

    def _scan(self, text, strict):
        """Replace all secrets in a text.

        With `strict`, everything that is named like a secret is one: this holds for commands and settings, but not for
        sentences.
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
        parts, copied, position, run_end = [], 0, 0, 0
        while True:
            match = _PAIR.search(text, position)
            if match is None:
                break
            position = match.end()
            name, begin = _find_name(text, match)
            if name is None or not _may_have_value(text, match, strict):
                continue
            begin, end, after, run_end = _find_value(text, begin, name, match, run_end, strict)
            if not _is_value_of(name, text[begin:end], text, match, strict):
                continue
            for first, last in [(begin, end), *_find_more_values(text, after, name)]:
                parts += [text[copied:first], self._note_all(text[first:last])]
                copied = last
            position = max(copied, after)
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
            if begin < end and _is_secret(text[begin:end]):
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
                if name.lower() not in _COOKIE_ATTRIBUTES and _is_secret(value):
                    self._note(value)
            parts += [text[copied:begin], MASK]
            copied = end
        return "".join([*parts, text[copied:]])

    def _mask_piped(self, match):
        return self._mask_group(match, match.lastindex) if _is_secret(match[match.lastindex]) else match[0]

    def _mask_call(self, match):
        value = match["value"]
        is_sure = (match["two"] and match["user"]) or looks_random(value)
        return self._mask_group(match, "value") if is_sure and _is_secret(value) else match[0]

    def _mask_group(self, match, group):
        begin, end = (position - match.start() for position in match.span(group))
        return match[0][:begin] + self._note(match[group]) + match[0][end:]

    def _mask_element(self, match):
        name, value = match.groups()
        value = value.strip()
        if (
            not value
            or not names_a_secret(name)
            or not _is_secret(value)
            or (is_weak(name) and not looks_random(value))
        ):
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


_MORE = re.compile(
    r"""[ \t]{1,5}(?!-)([^\s"';&|(){}<>\[\]]+)|[ \t]{1,5}"([^"\n]{1,4000})"|[ \t]{1,5}'([^'\n]{1,4000})'|"""
    r"""(?<=["']),[ \t]{0,3}"(?!-)([^"\n]{1,4000})"|(?<=["']),[ \t]{0,3}'(?!-)([^'\n]{1,4000})'"""
)
"""`--api-keys A B C`, `['--api-keys', 'A', 'B', 'C']`."""


def _find_name(text, match):
    """Return (name, where its value begins), or (None, ...) if it is not the name of a secret."""
    name, begin = match["name"], match.end()
    if name.lower() in _NAME_FIELDS and match["assign"]:
        named = _NAMED_VALUE.match(text, begin)
        if named is not None and names_a_secret(named["name"]):
            return named["name"], named.end()
    if not names_a_secret(name) and not (match["before"] and names_a_url_secret(name)):
        return None, begin
    if match["blank"] and not name.startswith("-"):
        begin = _VERB.match(text, begin).end()
    return name, begin


def _find_more_values(text, position, name):
    """Yield the positions of further values of an option that takes several."""
    while is_plural(name) and name.startswith("-"):
        more = _MORE.match(text, position)
        if more is None or not _is_secret(more[more.lastindex]):
            break
        yield more.span(more.lastindex)
        position = more.end()


def _may_have_value(text, match, strict):
    """Return True if the separator after the name may be followed by its value."""
    name, end = match["name"], match.end()
    begin = match.start("name")
    if match["assign"]:
        slashed = begin > 0 and text[begin - 1] == "/" and ":" in match["sep"]
        return not slashed or (match["sep"] == ":" and not text.startswith("/", end))
    if match["listed"]:  # an option in a printed list, or a pair in parentheses
        return name.startswith("-") or text[max(0, begin - 3) : begin - 1].rstrip("\\")[-1:] in ("(", "[")
    if match["table"]:
        return not strict
    if match["item"]:  # a YAML list with the option on one line and its value on the next
        return name.startswith("-") and "\n" in match["blank"]
    return not name.startswith("-") or not text.startswith("-", end)


def _match_quoted(text, begin, strict):
    wrapper = _WRAPPER.match(text, begin)
    quoted = _QUOTED.match(text, wrapper.end() if wrapper is not None else begin)
    if quoted is not None and not strict and "\n" in quoted[0]:  # in printed output, a quote ends with its line
        return None
    return quoted


def _find_value(text, begin, name, match, run_end, strict):
    """Return (begin, end, where to continue, end of the run) of the value without its quotes."""
    quoted = _match_quoted(text, begin, strict)
    if quoted is not None:
        inner, end = quoted.span(quoted.lastindex)
        if text[quoted.end() : quoted.end() + 1].isalnum():  # the supposed closing quote was escaped twice
            end = _PLAIN.match(text, quoted.end()).end()
        return inner, end, max(end, quoted.end()), run_end
    opened = _OPEN.match(text, begin)
    if opened is not None:
        return opened.start(1), opened.end(), opened.end(), run_end
    before = match.start("name") - 1
    if name.startswith("-") and match["assign"] and before >= 0 and text[before] in "\"'":  # '--password=two words'
        end = text.find(text[before], begin, begin + MAX_VALUE)
        if end > begin and "\n" not in text[begin:end]:
            return begin, end, end, run_end
    group = None if is_weak(name) or not match["assign"] else _GROUP.match(text, begin)
    if group is not None:
        return begin, group.end(), group.end(), run_end
    if match["long"] or (match["assign"] and name.lower().endswith(("passphrase", "mnemonic"))):
        line = _LINE.match(text, begin)
        if line is not None:
            return begin, line.end(), line.end(), run_end
    if run_end <= begin:  # computed once for all names in a run without spaces
        plain = _PLAIN.match(text, begin)
        run_end = plain.end() if plain is not None else begin
    return begin, run_end, run_end, run_end


def _is_value_of(name, value, text, match, strict):
    if not value or not _is_secret(value):
        return False
    seen = value[:200]
    bare = seen.rstrip(_PUNCTUATION)
    if name.lower().endswith("tokens") and _COUNT.fullmatch(bare):
        return False
    is_option, separator = name.startswith("-"), match["sep"]
    if match["blank"] and not is_option:
        return _is_value_in_prose(name, bare)
    if match["listed"]:
        return _is_value_in_list(name, value, text, match, strict)
    is_loose = ":" in separator and separator[0] not in "\\\"'"
    if not strict:
        if _CODE_OR_PROSE.fullmatch(bare) or _repeats_name(name, seen):
            return False
        if is_option and is_loose and not _is_mixed(seen):  # argument --api-key: expected one argument
            return False
    is_sure = bool(match["before"]) or (strict and not is_loose)
    is_code = _CODE.search(seen) is not None and not (match["before"] or name.isupper())
    is_doubtful = match["scheme"] is None and is_weak(name) and (not is_sure or is_code)
    begin = match.start("name")
    return not is_doubtful or looks_random(seen) or _QUALIFIER.search(text, max(0, begin - 16), begin) is not None


def _names_next_word(word, value):
    """Return True if the word names the next one in a command: `aws configure set aws_secret_access_key ...`."""
    return (
        not word.startswith("-")
        and names_a_secret(word)
        and _NAME.fullmatch(word) is not None
        and _is_value_in_prose(word, value)
    )


def _is_value_in_prose(name, value):
    """Return True for `password hunter2hunter2`, but not for `password is incorrect`."""
    if is_weak(name):
        return name.lower() in _PROSE_NAMES and looks_random(value)
    return _is_mixed(value) and not _CODE.search(value) and ("/" not in value or looks_random(value))


def _is_value_in_list(name, value, text, match, strict):
    """Return True for `['--api-key', 'x']` and `('X-Api-Key', 'x')`, but not for `['token', 'label', 'split']`."""
    quoted = _QUOTED.match(text, match.end())
    if name.startswith("-"):
        return not value.startswith("-") and (quoted is not None or strict) and not _repeats_name(name, value)
    if quoted is None or text[quoted.end() : quoted.end() + 1] not in (")", "]"):
        return False
    return not is_weak(name) or looks_random(value[:200])


def _truncate(text):
    return text if len(text) <= MAX_SCANNED else text[:MAX_SCANNED] + "..."


_process_redactor = None


def get_process_redactor():
    """Return the probe's redactor, which knows the secrets in this process's environment and command line.

    Never raises.
    """
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
