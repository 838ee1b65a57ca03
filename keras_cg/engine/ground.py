"""Finds what is known of a function before a run, so that nothing need be collected.

Nothing is at hand of a function that leads to data alone, and of a method that only reads numbers of its object. Most
functions of a factory find the same in their variables at each call.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, Literal

from keras_cg.engine.functions import ATOMS, facts, is_closed
from keras_cg.engine.reach import Variable, add_cells, are_bound, data, leads_by_defaults, leads_outside
from keras_cg.engine.references import dict_of
from keras_cg.engine.world import World

# In the place of a `Ground`: of a function that leads to data alone, by which a run has nothing at hand.
BARE: Final = "bare"


def ground_of(fun: Any) -> Ground | Literal["bare"] | None:
    """Returns what is known of each call of a function before its run; None if that is collected at each call."""
    if not leads_outside(fun):
        return BARE
    return Ground(fun) if type(fun) is FunctionType else None


class Ground:
    """The variables of a function that are bound to numbers, texts, modules, and functions of these.

    If a call finds there what the last one found, nothing is collected before the run, and nothing is noted after it.
    """

    def __init__(self, fun: FunctionType):
        self.fun = fun
        # The variables and the functions of the last call; None if there was something else.
        self.known: tuple[list[Variable], list[FunctionType]] | None = ([], [])

    def open(self) -> World | None:
        """Returns the world before a run; None if the function leads to something else, or has done so before."""
        known = self.known
        if known is not None and not (known[0] and are_bound(*known)):
            self.known = known = self._collected()
        if known is None:
            return None
        world = object.__new__(World)
        world.found, world.holders = known
        world.left, world.added, world.named, world.cells, world.before = world.found, [], [], {}, []
        world.owner, world.is_ground = None, True
        return world

    def _collected(self) -> tuple[list[Variable], list[FunctionType]] | None:
        fun, cells, helpers = self.fun, dict[int, Variable | None](), list[Any]()
        if facts(fun.__code__).assigned or leads_by_defaults(fun) or not add_cells(fun, cells, helpers):
            return None
        found = [variable for variable in cells.values() if variable is not None]
        # No tensor, which would stay alive from call to call.
        is_small = all([isinstance(value, (FunctionType, ModuleType, *ATOMS)) for _, _, value in found])
        return (found, helpers) if is_small and are_bound(found, helpers) else None


def are_data(values: Iterable[Any]) -> bool:
    """Whether all values are numbers, texts and tensors, which lead to nothing else."""
    return data.issuperset(map(type, values))


def only_reads(user: Any) -> bool:
    """Whether a function is a method that does nothing with its object but to read numbers and texts of it."""
    if type(user) is not MethodType or type(fun := user.__func__) is not FunctionType:
        return False
    frame = facts(fun.__code__)
    if frame.reads is None or fun.__closure__ or not is_closed(fun) or leads_by_defaults(fun):
        return False
    if not frame.reads:
        return True
    owner, kind = user.__self__, type(user.__self__)
    attributes = dict_of(owner)
    if kind.__getattribute__ is not object.__getattribute__:
        return False
    # Nothing in the class may have a part in it, as a property has.
    is_own = not any([name in vars(base) for base in kind.__mro__ for name in frame.reads])
    return is_own and all([isinstance(attributes.get(name, owner), ATOMS) for name in frame.reads])
