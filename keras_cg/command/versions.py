"""The versions of other packages that keras_cg was tested with.

The oldest versions are the lower bounds of the installed keras_cg; the newest ones are listed here.
"""

from __future__ import annotations

import importlib.metadata
import re

# From constraints-newest.txt, or from constraints.txt where pip finds nothing newer; torch's was tested by hand.
NEWEST = {
    "array-api-compat": "1.16",
    "autograd": "1.9",
    "jax": "0.12",
    "keras": "3.15",
    "numpy": "2.5",
    "optree": "0.20",
    "scipy": "1.18",
    "tensorflow": "2.21",
    "tensorflow-cpu": "2.21",
    "torch": "2.15",
}


def untested() -> list[str]:
    """Returns a line for each installed package outside the tested versions; patch releases do not count."""
    lines = []
    for package, oldest in _oldest().items():
        version, newest = _version(package), NEWEST.get(package)
        if version is None or newest is None:
            continue
        tested = f"the versions that keras_cg was tested with ({oldest} to {newest})"
        if _release(version) < _release(oldest):
            lines.append(f"{package} {version} is older than {tested}: upgrade it")
        elif _release(version) > _release(newest):
            lines.append(f"{package} {version} is newer than {tested}: it is untested")
    return lines


def _oldest() -> dict[str, str]:
    try:
        needed = importlib.metadata.requires("keras-cg") or []
    except importlib.metadata.PackageNotFoundError:
        return {}  # a checkout that is only on the path has no metadata
    found = [re.match(r"([\w.-]+?)\s*>=\s*([\d.]+)", each) for each in needed]
    return {match[1]: match[2] for match in found if match}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Returns the major and minor number, without the patch release."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
