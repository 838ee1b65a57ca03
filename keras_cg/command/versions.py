"""Which versions of other packages keras_cg was tested with.

The oldest are the lower bounds that the package itself was installed with; the newest stand here.
"""

from __future__ import annotations

import importlib.metadata
import re

# Equal to constraints-newest.txt, or to constraints.txt where pip finds nothing newer; torch's was tested by hand.
NEWEST = {
    "array-api-compat": "1.16",
    "autograd": "1.9",
    "jax": "0.12",
    "keras": "3.15",
    "numpy": "2.5",
    "optree": "0.20",
    "scipy": "1.18",
    "tensorflow-cpu": "2.21",
    "torch": "2.15",
}

# Other packages with the same modules.
_ALSO = {"tensorflow-cpu": ("tensorflow-cpu", "tensorflow")}


def untested() -> list[str]:
    """A line for each installed package that is older, or newer, than what was tested; patch releases do not count."""
    lines = []
    for name, oldest in _oldest().items():
        for package in _ALSO.get(name, (name,)):
            version = _version(package)
            newest = NEWEST.get(name)
            if version is None or newest is None:
                continue
            tested = f"what keras_cg was tested with ({oldest} to {newest})"
            if _release(version) < _release(oldest):
                lines.append(f"{package} {version} is older than {tested}: upgrade it")
            elif _release(version) > _release(newest):
                lines.append(f"{package} {version} is newer than {tested}: it is untested")
    return lines


def _oldest() -> dict[str, str]:
    try:
        needed = importlib.metadata.requires("keras-cg") or []
    except importlib.metadata.PackageNotFoundError:
        return {}  # a checkout on the path
    found = [re.match(r"([\w.-]+?)\s*>=\s*([\d.]+)", each) for each in needed]
    return {match[1]: match[2] for match in found if match}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number, which are what a framework's changes go by."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
