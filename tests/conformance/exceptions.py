"""The one table of what is refused: where, with what message, and for what reason.

It is strict: what stands here and works fails the run.
"""

import dataclasses
import fnmatch


@dataclasses.dataclass(frozen=True)
class Refusal:
    backend: str
    # Patterns of fnmatch, with `|` between several.
    transforms: str
    rules: str
    # What the error says, a regular expression.
    match: str
    reason: str


TABLE: list[Refusal] = []


def find(backend: str, transform: str, rule: str) -> Refusal | None:
    for each in TABLE:
        if each.backend == backend and _matches(each.transforms, transform) and _matches(each.rules, rule):
            return each
    return None


def _matches(patterns: str, name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split("|"))
