"""What stands in for tensors and rules where the engine is tried without a framework."""


class T:
    """Stands in for a tensor."""

    def __init__(self, value=0.0):
        self.value = value


def is_tensor(value):
    return isinstance(value, T)


class Keeps:
    def __init__(self, s):
        self.s = s

    def __call__(self, u):
        return self.s * u

    def method(self, u):
        return self.twice(u)

    def twice(self, u):
        return 2 * self.s * u


class Slotted:
    __slots__ = ("s",)

    def __init__(self, s):
        self.s = s

    def __call__(self, u):
        return self.s * u

    method = __call__


class Notes:
    def note(self):
        self.calls = 1
