"""Loads untrusted YAML within bounds: a few lines of YAML can describe more than fits into memory, or take forever.

Aliases and merge keys count as often as they are expanded ("billion laughs"). The length of numbers is limited, because
parsing YAML's base-60 numbers takes time that grows with the square of their length. Nesting is limited. Only plain
values are created.
"""

from __future__ import annotations

import functools
from typing import Any

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
"""Number of values; a value counts again for each alias that repeats it."""
MAX_DEPTH = 32
MAX_NUMBER = 64
"""Characters of a number or a date."""


class YamlRefused(ValueError):
    """The data is not YAML, or exceeds a limit. `line` counts from 1; None if unknown."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def load_yaml(data: bytes) -> Any:
    """Load YAML. Raise YamlRefused."""
    import yaml  # noqa: PLC0415 - slow to import, and only needed for plans with data

    if len(data) > MAX_BYTES:
        raise YamlRefused(f"it is larger than {MAX_BYTES:,} bytes")
    try:
        return yaml.load(data.decode("utf-8-sig"), Loader=_loader())  # noqa: S506 - a safe loader
    except YamlRefused:
        raise
    except UnicodeDecodeError:
        raise YamlRefused("it is not UTF-8 text: save it as UTF-8") from None
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        # Values that do not match their tag (!!float "") make PyYAML raise various exceptions.
        mark = getattr(error, "problem_mark", None)
        message = getattr(error, "problem", None) or f"a value cannot be read ({type(error).__name__})"
        raise YamlRefused(message, None if mark is None else mark.line + 1) from None


@functools.cache
def _loader() -> Any:
    import yaml  # noqa: PLC0415 - slow to import

    return type("BoundedLoader", (_Bounds, yaml.SafeLoader), {})


class _Bounds:
    """A mixin for a PyYAML loader that counts values while they are composed. It must come first in the MRO."""

    peek_event: Any
    anchors: Any

    def __init__(self, stream: str) -> None:
        super().__init__(stream)  # type: ignore[call-arg]
        self._nodes = 0
        self._depth = 0
        self._sizes: dict[str, int] = {}
        """Anchor -> number of values that an alias repeats, once the anchored value is complete."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if type(event).__name__ == "AliasEvent":
            if event.anchor in self.anchors and event.anchor not in self._sizes:
                raise YamlRefused("a value contains itself", line)
            self._count(self._sizes.get(event.anchor, 1), line)
            return super().compose_node(parent, index)  # type: ignore[misc]
        before = self._nodes
        self._count(1, line)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlRefused(f"it is nested more than {MAX_DEPTH} levels deep", line)
        node = super().compose_node(parent, index)  # type: ignore[misc]
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)  # type: ignore[misc]
        if not node.tag.endswith((":str", ":binary", ":merge")) and len(node.value) > MAX_NUMBER:
            raise YamlRefused(f"a number has more than {MAX_NUMBER} characters", node.start_mark.line + 1)
        return node

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise YamlRefused(f"it describes more than {MAX_NODES:,} values", line)
