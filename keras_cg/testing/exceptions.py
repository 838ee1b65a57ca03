"""Describes an exception from the user's functions: what it says, what to do, and the line that raised it."""

from __future__ import annotations

import linecache
import os

from keras_cg import user_code
from keras_cg.frontend import tracebacks

# The parts of an error of keras_cg that a finding repeats.
PARTS = ("got", "expected", "remedy")


def described(error: Exception) -> tuple[str, str | None]:
    """Returns the reason for a finding, with the line of the rule or of user code, and the usual cause if it is known.

    An error of keras_cg has its parts (got, expected, cause and remedy) as attributes.
    """
    ours = _reported(error)
    lines = [line.strip() for line in str(ours or error).splitlines() if line.strip()] or ["no message"]
    # TensorFlow puts its own traceback before the message.
    headline = lines[-1] if lines[0] == "in user code:" else lines[0]
    details = [f"{name}: {getattr(ours, name)}".removesuffix(".") for name in PARTS if getattr(ours, name, None)]
    conventions = [line.partition("  ")[0] for line in lines if line.startswith("grad(")]
    if ours is not None and conventions:
        details.append(f"expected one of: {', '.join(conventions)}")
    frame, where = user_code.innermost(error), getattr(ours, "location", None)
    if where is not None:
        # The rule has returned, so no frame of the traceback shows it.
        path, _, number = where.rpartition(":")
        details.append(f"the rule is at {os.path.basename(where)}: {linecache.getline(path, int(number)).strip()}")
    elif frame is not None:
        details.append(f"at {os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}")
    reason = f"{type(error).__name__}: " + "; ".join([headline.removesuffix("."), *details])
    return reason, getattr(ours, "cause", None)


def _reported(error: BaseException) -> BaseException | None:
    """Finds the error of keras_cg whose message `error` shows: itself, or the error that a framework raised it from.

    An error with another message is not from keras_cg: user code may have raised it while it handled ours.
    """
    passed: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in passed:
        if tracebacks.is_reported(link) and str(link).partition("\n")[0] in str(error):
            return link
        passed.add(id(link))
        link = link.__cause__ or link.__context__
    return None
