"""One line for the user that is no result: on stderr."""

from __future__ import annotations

import sys

from holdfast.show.plain import printable


def tell(line: str) -> None:
    if sys.stderr is not None:
        print(f"holdfast: {printable(line)}", file=sys.stderr)
