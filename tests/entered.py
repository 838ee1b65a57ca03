"""Which frames of this package a call enters: whether it goes the short way or the long one."""

import sys
from collections import Counter


def frames(call):
    """The frames of this package that a call enters, once it is warm: `module:function`."""
    for _ in range(3):
        call()
    found = Counter()

    def note(frame, event, arg):
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("keras_cg."):
            found[f"{module.removeprefix('keras_cg.')}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def is_long(found):
    return any(name.startswith(("call:", "leaves:", "gradients:", "conventions:")) for name in found)
