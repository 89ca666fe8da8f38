"""Values of secrets in a text, found by their names: `NAME=value`, `"name": "value"`, `--name value`, `name is value`.

Every pattern takes time proportional to the length of the text: a name begins only where a word begins, and its length is
limited.
"""

import os
import re

from .secret_names import is_plural, is_weak, names_a_secret, names_a_url_secret
from .secret_shapes import looks_random

MAX_VALUE = 4000
_HARMLESS = re.compile(
    r"\d{1,5}|[+-]?\d{0,8}\.\d{1,8}|true|false|none|null|yes|no|on|off|nan|-?inf|\*\*\*|\$\w+|\$\{[^}]{1,200}\}|%\w+%"
    r"|\$\(.{0,400}|\{[\w.]{1,100}\}|[\[\](){}<>,.:;*|]{0,8}|",
    re.IGNORECASE,
)
"""`--num-key-value-heads 8` is not a secret, and `$TOKEN` is only the name of one."""
COUNT = re.compile(r"[\d,._]{1,20}[kmbt]?", re.IGNORECASE)
"""`--tokens 300B`."""
_CODE_OR_PROSE = re.compile(
    r"(?:os\.|getpass|self\.|args\.|opts?\.|cfg\.|conf\.|config\.|settings\.|get_\w{1,40}\(|input\(|str\(|environ|env\.)\S*"
    r"|(?:str|int|bytes|bool|float|string|secretstr|optional\[\w+\]|any)"
    r"|is|was|are|or|and|to|for|not|must|can|cannot|expected|required|missing|invalid|incorrect|wrong|failed|denied|<[\w -]{1,60}>",
    re.IGNORECASE,
)
"""Text after the name of a secret, in a line of code or in a sentence, that is not a value."""
NAME = re.compile(r"[-+~]{0,2}[A-Za-z_][\w.\-/@]{0,99}")
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
GROUP = re.compile(r"\[[^\[\]]{1,1000}\]|\([^()\n]{1,1000}\)|\{[^{}]{1,1000}\}")
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
_WRAPPER = re.compile(
    r"""(?!\w{0,40}(?:env|get|input|load|read|open|Path))[A-Za-z_]\w{0,40}\([ \t]{0,3}(?=[bru]{0,2}["'])"""
)
"""`SecretStr('...')`."""
_PUNCTUATION = ",.;:!?)]}"
_MORE = re.compile(
    r"""[ \t]{1,5}(?!-)([^\s"';&|(){}<>\[\]]+)|[ \t]{1,5}"([^"\n]{1,4000})"|[ \t]{1,5}'([^'\n]{1,4000})'|"""
    r"""(?<=["']),[ \t]{0,3}"(?!-)([^"\n]{1,4000})"|(?<=["']),[ \t]{0,3}'(?!-)([^'\n]{1,4000})'"""
)
"""`--api-keys A B C`, `['--api-keys', 'A', 'B', 'C']`."""


def find_named_values(text, strict):
    """Yield (begin, end) of each value that follows the name of a secret, in order."""
    position, run_end = 0, 0
    while True:
        match = _PAIR.search(text, position)
        if match is None:
            return
        position = match.end()
        name, begin = _find_name(text, match)
        if name is None or not _may_have_value(text, match, strict):
            continue
        begin, end, after, run_end = _find_value(text, begin, name, match, run_end, strict)
        if not _is_value_of(name, text[begin:end], text, match, strict):
            continue
        yield begin, end
        last = end
        for first, last in _find_more_values(text, after, name):
            yield first, last
        position = max(last, after)


def _is_path(value):
    """Return True for an existing path: PWD and `--ssh-key ~/.ssh/id` look like secrets, but contain paths."""
    if "/" not in value or len(value) > 4096 or "\0" in value:
        return False
    try:
        return os.path.lexists(os.path.expanduser(value))
    except (OSError, ValueError):
        return False


def is_secret(value):
    return not _HARMLESS.fullmatch(value.rstrip(",)]}")) and not _is_path(value)


def is_mixed(value):
    return len(value) >= 8 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def _repeats_name(name, value):
    """Return True if the value only repeats the name: `password=args.password`, `[--api-key API_KEY]`."""
    last = re.split(r"[.\[\]]", value.strip("[]<>(){},;:\"'"))[-1]
    return last.replace("-", "_").lower() == name.lstrip("-").replace("-", "_").rpartition(".")[2].lower()


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
        if more is None or not is_secret(more[more.lastindex]):
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
    group = None if is_weak(name) or not match["assign"] else GROUP.match(text, begin)
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
    if not value or not is_secret(value):
        return False
    seen = value[:200]
    bare = seen.rstrip(_PUNCTUATION)
    if name.lower().endswith("tokens") and COUNT.fullmatch(bare):
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
        if is_option and is_loose and not is_mixed(seen):  # argument --api-key: expected one argument
            return False
    is_sure = bool(match["before"]) or (strict and not is_loose)
    is_code = _CODE.search(seen) is not None and not (match["before"] or name.isupper())
    is_doubtful = match["scheme"] is None and is_weak(name) and (not is_sure or is_code)
    begin = match.start("name")
    return not is_doubtful or looks_random(seen) or _QUALIFIER.search(text, max(0, begin - 16), begin) is not None


def names_next_word(word, value):
    """Return True if the word names the next one in a command: `aws configure set aws_secret_access_key ...`."""
    return (
        not word.startswith("-")
        and names_a_secret(word)
        and NAME.fullmatch(word) is not None
        and _is_value_in_prose(word, value)
    )


def _is_value_in_prose(name, value):
    """Return True for `password hunter2hunter2`, but not for `password is incorrect`."""
    if is_weak(name):
        return name.lower() in _PROSE_NAMES and looks_random(value)
    return is_mixed(value) and not _CODE.search(value) and ("/" not in value or looks_random(value))


def _is_value_in_list(name, value, text, match, strict):
    """Return True for `['--api-key', 'x']` and `('X-Api-Key', 'x')`, but not for `['token', 'label', 'split']`."""
    quoted = _QUOTED.match(text, match.end())
    if name.startswith("-"):
        return not value.startswith("-") and (quoted is not None or strict) and not _repeats_name(name, value)
    if quoted is None or text[quoted.end() : quoted.end() + 1] not in (")", "]"):
        return False
    return not is_weak(name) or looks_random(value[:200])
