"""What patterns find in texts, on any Python: a program for an interpreter that has its standard library alone.

In: lines of JSON, each `[pattern, flags, is_bytes, texts]`; bytes are written as Latin-1. Out: a line for each, with a
list for each text: the spans of all groups of every place found.
"""

import json
import re
import sys
from typing import Any

Spans = list[list[tuple[int, int]]]


def found(pattern: str, flags: int, is_bytes: bool, texts: list[str]) -> list[Spans]:
    compiled: re.Pattern[Any] = re.compile(pattern.encode("latin-1") if is_bytes else pattern, flags)
    groups = range(compiled.groups + 1)
    return [
        [
            [place.span(group) for group in groups]
            for place in compiled.finditer(text.encode("latin-1") if is_bytes else text)
        ]
        for text in texts
    ]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(found(*json.loads(line))), flush=True)
