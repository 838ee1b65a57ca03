"""What functions and rules close over: the tensors in them, and the same function around others.

What a rule captured is hidden from a framework in the cells of its closure. So it is taken out, to be kept and
differentiated as the framework likes, and the rule is made anew around what comes back. Likewise, what a function
closes over under a transform of torch.func, or of autograd, is made an argument of it.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import dis
import enum
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

import numpy

from keras_cg import nest
from keras_cg.engine.hiding import may_hide

# Makes a value around other tensors; the dict holds what was made already, so that one thing stays one thing.
Build = Callable[[Sequence[Any], dict[Any, Any]], Any]

# What holds no tensor, whatever it is asked; a class may.
_EMPTY = (
    *(kind for kind in nest.ATOMS if kind is not type),
    *(BuiltinFunctionType, range, enum.Enum, numpy.dtype, type(...)),
)

# Whose code knows nothing of this package, and whose modules nobody keeps tensors in.
_FRAMEWORKS = {"autograd", "builtins", "jax", "jaxlib", "math", "numpy", "tensorflow", "torch"}
_LIBRARIES = {*_FRAMEWORKS, "array_api_compat", "functools", "itertools", "keras", "keras_cg", "operator", "scipy"}

# By these names a function reaches what it does not name; by `id` it looks a tensor up.
_REACHING = frozenset(("__import__", "eval", "exec", "globals", "import_module", "locals", "vars"))
_DYNAMIC = _REACHING | {"id"}

# How many names of how many functions are followed, before nobody knows what they lead to.
_MANY = 500

# The types of what holds no tensor, whichever value it is.
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes)

# What a nest is made of that can be laid flat and packed again without a loss.
_CONTAINERS = (list, dict, collections.OrderedDict, collections.defaultdict)


def trust(framework: str, backend: str) -> None:
    """Told by which packages a backend from elsewhere comes: nobody keeps tensors in their modules either.

    Args:
        framework: The package of the framework.
        backend: The package of the backend.
    """
    _FRAMEWORKS.add(framework)
    _LIBRARIES.update((framework, backend))


class Held(NamedTuple):
    """The tensors that something holds, and how to make it again around others.

    Those at the places `stuck` stay where they are, and `is_hiding` says that there may be others. It `is_whole` if
    neither is so.
    """

    tensors: list[Any]
    build: Callable[[Sequence[Any]], Any]
    stuck: Collection[int] = ()
    is_hiding: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all tensors are here, and `build` replaces each."""
        return not self.stuck and not self.is_hiding

    def movable(self, is_wanted: Callable[[Any], bool] | None = None) -> Held:
        """The same without those that stay where they are, which are not to be counted on, or are not wanted."""
        moving = [
            place
            for place, tensor in enumerate(self.tensors)
            if place not in self.stuck and (is_wanted is None or is_wanted(tensor))
        ]

        def build(tensors: Sequence[Any]) -> Any:
            others = list(self.tensors)
            for place, tensor in zip(moving, tensors, strict=True):
                others[place] = tensor
            return self.build(others)

        return Held([self.tensors[place] for place in moving], build, (), bool(self.stuck) or self.is_hiding)


def find(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    is_tensor: Callable[[Any], bool],
    children: nest.Children,
    made_by: Callable[..., Any] | None = None,
    whole: tuple[type, ...] = (),
) -> Held:
    """The tensors that a function holds; `build` gives the pair `(function, arguments)` around others.

    Found are tensors in nests, in closures, defaults and partials, in those of the functions found there, in the
    attributes of plain objects, and in globals that the code names. Some are found but stay where they are: those in a
    set or behind a `__wrapped__`, which cannot be made anew; those in lists and dicts that the run of `made_by` may not
    have made, which the function may be meant to change; globals; and all of them if a function assigns to what it
    closes over, those in objects if it assigns to attributes.

    Args:
        function: A rule, most often.
        arguments: What it will be called with.
        is_tensor: Says what is to be found.
        children: Opens the containers of the active framework's own tree utility.
        made_by: The function whose run made it, if that is known.
        whole: The classes of objects that stay what they are: nothing is looked for in them.
    """
    arguments = tuple(arguments)
    if not whole and all([isinstance(argument, nest.ATOMS) and not is_tensor(argument) for argument in arguments]):
        alone = _tensors_alone(function, arguments, is_tensor)
        if alone is not None:
            return alone
    search = _Search(function, made_by, is_tensor, children, whole)
    new_function = search.look(function, True)
    new_arguments = search.look(arguments, True) if arguments else None

    make_function = _constantly(function) if new_function is None or search.assigns else new_function
    make_arguments = new_arguments or _constantly(arguments)

    def build(tensors: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        done: dict[Any, Any] = {}
        return make_function(tensors, done), make_arguments(tensors, done)

    if search.is_frozen:
        make_function, make_arguments = _constantly(function), _constantly(arguments)
    stuck = range(len(search.tensors)) if search.assigns or search.is_frozen else search.stuck
    return Held(search.tensors, build, stuck, search.is_hiding)


def _tensors_alone(
    function: Callable[..., Any], arguments: tuple[Any, ...], is_tensor: Callable[[Any], bool]
) -> Held | None:
    """The same for a function that closes over tensors and nothing else that could hold some, as most rules do.

    Its arguments hold none.
    """
    closure = Closure.of(function, is_tensor)
    inside = None if closure is None else closure.taken(function)
    if closure is None or inside is None:
        return None
    tensors = [inside[place] for place in closure.places]
    for place in closure.places:
        inside[place] = None
    # Neither the function nor its cells, which hold the tensors.
    around, defaults = closure, (function.__defaults__, function.__kwdefaults__)

    def build(tensors: Sequence[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return around.made(inside, range(len(tensors)), tensors, defaults), arguments

    return Held(tensors, build)


# What a plain function has by default.
Defaults = tuple[tuple[Any, ...] | None, dict[str, Any] | None]


class Closure:
    """What is the same of all functions that one piece of code makes, if they hold tensors in their cells alone.

    Which cells these are was found out of one of them. Another holds its own there if its cells hold the same types,
    and the modules and functions in them, and the globals that the code names, are what they were.

    Attributes:
        code: That of the functions.
        kinds: What is in each cell: a type, or the module or function itself.
        places: The cells with a tensor.
        watched: The globals that the code names, and attributes of modules: where, by which name, what is there.
        defaults: Which parameters have one.
        helpers: The functions of the user's that it calls, with their code.
        cells: The cells of these, and what is in each, as in `kinds`.
        is_reaching: Whether there may be code of this package, or of a user that is not among these.
    """

    __slots__ = ("cells", "code", "defaults", "helpers", "is_reaching", "kinds", "places", "scope", "watched")

    def __init__(self, function: FunctionType, kinds: list[Any], places: Sequence[int], found: _Named):
        self.code, self.scope = function.__code__, function.__globals__
        self.kinds, self.places, self.watched, self.cells = kinds, places, found.watched, found.cells
        self.defaults, self.helpers = _named(function), {each: each.__code__ for each in found.helpers}
        # What a helper names is watched as well.
        values = [*kinds, *[kind for _, kind in found.cells], *[value for _, _, value in found.watched]]
        self.is_reaching = any([_is_reaching(value) for value in values if not _is_in(found.helpers, value)])

    @classmethod
    def of(cls, function: Callable[..., Any], is_tensor: Callable[[Any], bool]) -> Closure | None:
        """The closure of a function; None if it may hold a tensor elsewhere than in a cell."""
        if type(function) is not FunctionType or not _is_bare(function) or _assigns(function.__code__):
            return None
        contents = _contents(function)
        if contents is None:
            return None
        kinds = [type(value) if is_tensor(value) else _kind(value) for value in contents]
        called = [kind for kind in kinds if isinstance(kind, FunctionType)]
        found = None if None in kinds else _found(function, called, is_tensor)
        places = tuple([place for place, value in enumerate(contents) if is_tensor(value)])
        return None if found is None else cls(function, kinds, places, found)

    def taken(self, function: Any) -> list[Any] | None:
        """What the cells of a function of this code hold; None if it is not as the one that this was found out of."""
        if function.__globals__ is not self.scope or function.__dict__:
            return None
        has_defaults = function.__defaults__ is not None or function.__kwdefaults__ is not None or self.defaults
        if has_defaults and (not _is_bare(function) or _named(function) != self.defaults):
            return None
        for scope, name, value in self.watched:
            if scope.get(name) is not value:
                return None
        for helper, code in self.helpers.items():
            if helper.__code__ is not code or not _is_bare(helper):
                return None
        contents = []
        try:
            # In one frame, since every call comes here.
            for cell, kind in zip(function.__closure__ or (), self.kinds):  # noqa: B905  as many as the code has
                value = cell.cell_contents
                if type(value) is not kind and value is not kind:
                    return None
                contents.append(value)
            for cell, kind in self.cells:
                value = cell.cell_contents
                if type(value) is not kind and value is not kind:
                    return None
        except ValueError:
            return None
        return contents

    def names(self) -> tuple[str, ...]:
        """The names of the globals and attributes that the code asks for, and what it calls of the user's.

        Modules are left out. A function of a library, which may do anything, ends in `()`.
        """
        found = set()
        for _, name, value in self.watched:
            if isinstance(value, ModuleType):
                continue
            if type(value) is not FunctionType:
                # What was imported under another name has its own.
                found.update({name, getattr(value, "__name__", None) or name})
            elif value not in self.helpers:
                found.add(f"{name}()")
        return tuple(sorted(found))

    def made(
        self, contents: list[Any], sources: Sequence[int], tensors: Sequence[Any], defaults: Defaults
    ) -> FunctionType:
        """Such a function around others: those of `tensors` at `sources`, one for each cell with a tensor."""
        inside = contents.copy()
        for place, source in zip(self.places, sources):  # noqa: B905  there may be more sources
            inside[place] = tensors[source]
        made = FunctionType(self.code, self.scope, None, defaults[0], tuple(map(CellType, inside)))
        if defaults[1] is not None:
            made.__kwdefaults__ = defaults[1]
        return made


def _is_reaching(value: Any) -> bool:
    """Whether a global may lead to code that asks which backend is active; that of a framework does not."""
    package = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
    return value is not None and not (isinstance(package, str) and package.partition(".")[0] in _FRAMEWORKS)


def _is_in(helpers: Sequence[FunctionType], value: Any) -> bool:
    return type(value) is FunctionType and value in helpers


def _contents(function: FunctionType) -> list[Any] | None:
    """What the cells of a function hold; None if nothing was assigned to one of them yet."""
    try:
        return [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        return None


def _kind(value: Any) -> Any:
    """What must be in a cell for which this is no tensor: its type, or the very module or function of the user's.

    None if nobody knows.
    """
    kind = type(value)
    if kind in _CONSTANTS:
        return kind
    return value if kind is ModuleType or (kind is FunctionType and _is_users(value)) else None


def _named(function: FunctionType) -> tuple[Any, ...]:
    """Which parameters of a function have a default: how many of those by position, and the names of the others."""
    count, others = len(function.__defaults__ or ()), function.__kwdefaults__ or {}
    return (count, *others) if count or others else ()


def _is_bare(function: FunctionType) -> bool:
    """Whether a function has neither attributes nor defaults that could hold a tensor."""
    if function.__defaults__ is None and function.__kwdefaults__ is None and not function.__dict__:
        return True
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return not function.__dict__ and all([type(value) in _CONSTANTS for value in defaults])


# Something in the code of a function that a name leads to: where it stands, by which name, and what it is.
Watched = tuple[dict[str, Any], str, Any]


class _Named(NamedTuple):
    """What a function, and what it calls of the user's, name: `Closure` says what each is."""

    watched: list[Watched]
    helpers: list[FunctionType]
    cells: list[tuple[CellType, Any]]


def _found(function: FunctionType, called: Sequence[FunctionType], is_tensor: Callable[[Any], bool]) -> _Named | None:
    """What a function, and what it calls of the user's, name; None if one of these may hold a tensor.

    A name that is none is watched, too: it is an attribute, most often, but there may be such a global by then.

    Args:
        function: The function.
        called: Those in its cells.
        is_tensor: Says what is to be found.
    """
    watched: dict[tuple[int, str], Watched] = {}
    helpers: list[FunctionType] = []
    cells: list[tuple[CellType, Any]] = []
    left, more = [*called], _watch(function, watched, is_tensor)
    while more is not None and (left or more) and len(watched) <= _MANY:
        left += more
        each = left.pop()
        if each in helpers:
            more = []
            continue
        kinds = [*map(_kind, _contents(each) or [None] * len(each.__closure__ or ()))]
        if None in kinds or not _is_bare(each) or _assigns(each.__code__):
            return None
        helpers.append(each)
        cells += zip(each.__closure__ or (), kinds, strict=True)
        left += [kind for kind in kinds if isinstance(kind, FunctionType)]
        more = _watch(each, watched, is_tensor)
    # In a helper of its own a function would be met with the tensors that it was found with.
    is_known = more is not None and len(watched) <= _MANY and function not in helpers
    return _Named([*watched.values()], helpers, cells) if is_known else None


def _watch(
    function: FunctionType, watched: dict[tuple[int, str], Watched], is_tensor: Callable[[Any], bool]
) -> list[FunctionType] | None:
    """Puts what a function names among what is watched.

    Returns:
        Those of the user's functions there that were not watched yet; None if something there may hold a tensor.
    """
    code, scope = function.__code__, function.__globals__
    names = _names(code)
    if _is_dynamic(code):
        return None
    found = [(scope, name, scope.get(name)) for name in names]
    # What is no global may be a builtin, or a module that is imported there.
    found += [(vars(builtins), name, vars(builtins)[name]) for name in names if name in vars(builtins)]
    found += [(sys.modules, name, sys.modules[name]) for name in _imports(code) if name in sys.modules]
    # A module in a cell is kept there by whoever made the function.
    for value in _contents(function) or ():
        found += _attributes(value, names) if isinstance(value, ModuleType) else ()
    more = []
    while found:
        where, name, value = found.pop()
        if (id(where), name) in watched:
            continue
        watched[id(where), name] = where, name, value
        if isinstance(value, ModuleType):
            found += _attributes(value, names)
        elif is_tensor(value):
            return None
        elif type(value) is FunctionType:
            # One of a library is passed over, but for what it calls itself.
            if value.__globals__ is scope or _is_users(value):
                more.append(value)
        elif not isinstance(value, _EMPTY) and (where is scope or not _is_of_library(where)):
            return None
    return more


def _attributes(module: ModuleType, names: Sequence[str]) -> list[Watched]:
    """What a module has by these names; of a user's also what it has not, and may be given later."""
    scope = vars(module)
    return [(scope, name, scope.get(name)) for name in names if name in scope or not _is_of_library(scope)]


def _is_users(function: FunctionType) -> bool:
    """Whether a function is of no library, so that tensors may be kept where it can find them."""
    return str(function.__globals__.get("__name__")).partition(".")[0] not in _LIBRARIES


def _is_of_library(where: dict[str, Any]) -> bool:
    """Whether what a module has is a library's, and so holds no tensor of the user's."""
    package = where.get("__name__")
    return where is vars(builtins) or (isinstance(package, str) and package.partition(".")[0] in _LIBRARIES)


class _Search:
    """One walk through what a rule holds; what it finds, in the order in which it was found."""

    def __init__(
        self,
        searched: Any,
        made_by: Any,
        is_tensor: Callable[[Any], bool],
        children: nest.Children,
        whole: tuple[type, ...],
    ):
        searched = _function(searched)
        self.writes = searched is not None and _writes(searched.__code__)
        self.names = () if searched is None else _names(searched.__code__)
        self.scope = None if searched is None else searched.__globals__
        # Whether tensors must stay the objects that they are: a key, or looked up by identity.
        self.is_frozen = "id" in self.names
        function = _function(made_by)
        self.made = _inner(function.__code__) if function else frozenset()
        self.older = {id(cell) for cell in function.__closure__ or ()} if function else set()
        self.is_tensor = is_tensor
        self.children = children
        self.whole = whole
        self.tensors: list[Any] = []
        self.assigns = False
        self.is_hiding = False
        self.stuck: set[int] = set()
        # By identity, and with the value, whose identity nothing else must take over meanwhile.
        self.known: dict[int, tuple[Any, Build | None]] = {}
        # What was found more than once.
        self.met: set[int] = set()

    def look(self, value: Any, own: bool) -> Build | None:
        """How to make `value` around other tensors, or None if it can stay as it is.

        Args:
            value: Anything.
            own: Whether this run of the function made it.
        """
        # An array is a tensor on NumPy, and an atom elsewhere.
        if isinstance(value, self.whole):
            return None
        if isinstance(value, nest.ATOMS) and not self.is_tensor(value):
            self.is_hiding = self.is_hiding or (not _is_atom(value) and self._may_hide(value))
            return None
        place = id(value)
        if place in self.known:
            self.met.add(place)
        else:
            self.known[place] = value, None
            build = self._open(value, own)
            # What is met again inside itself stays as it is there, around the tensors that it had.
            self.is_hiding = self.is_hiding or (build is not None and place in self.met)
            self.known[place] = value, build and functools.partial(_once, build)
        return self.known[place][1]

    def _open(self, value: Any, own: bool) -> Build | None:
        if self.is_tensor(value):
            place = len(self.tensors)
            self.tensors.append(value)
            return lambda tensors, done: tensors[place]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            return self._partial(value)
        if isinstance(value, tuple) and not hasattr(value, "__dict__"):
            return self._tuple(value, own)
        if isinstance(value, dict) and any(map(self.is_tensor, value)):
            self.is_frozen = True
        if type(value) in _CONTAINERS or (own and _is_plain_dataclass(value)):
            self.is_hiding = self.is_hiding or (type(value) not in _CONTAINERS and self._may_hide(type(value)))
            return self._nest(value, own)
        if isinstance(value, MethodType):
            return self._method(value)
        if isinstance(value, ModuleType):
            self.stay(_named_in(value, self.names, self.is_tensor))
            return None
        if _is_simple(value):
            self.is_hiding = self.is_hiding or self._may_hide(type(value))
            return self._object(value)
        if isinstance(value, (set, frozenset)) and any(map(self.is_tensor, value)):
            self.is_frozen = True
        parts = _inside(value)
        self.stay(parts)
        self.is_hiding = self.is_hiding or (not parts and self._may_hide(value))
        return None

    def _may_hide(self, value: Any) -> bool:
        return may_hide(value, self.is_tensor, self.scope)

    def stay(self, parts: Iterable[Any]) -> None:
        """Looks for tensors where none can be replaced: whoever finds one there has not got the whole."""
        before = len(self.tensors)
        for part in parts:
            self.look(part, False)
        self.stuck.update(range(before, len(self.tensors)))

    def _nest(self, value: Any, own: bool) -> Build | None:
        laid = nest.flatten(value, self.is_tensor, self.children)
        if not own:
            # It may be older than this run, which may have put tensors into it all the same.
            self.stay(laid.leaves)
            return None
        looked = [self.look(leaf, own) for leaf in laid.leaves]
        builds = {place: build for place, build in enumerate(looked) if build is not None}
        if not builds:
            return None
        for place in builds:
            laid.leaves[place] = None
        return lambda tensors, done: laid.fill(list(builds), [build(tensors, done) for build in builds.values()])

    def _tuple(self, value: tuple[Any, ...], own: bool) -> Build | None:
        builds = self._each(value, own)
        if builds is None:
            return None
        # A namedtuple takes its parts one by one; the structures that torch returns take them together.
        make = getattr(value, "_make", type(value))
        return lambda tensors, done: make([build(tensors, done) for build in builds])

    def _partial(self, value: functools.partial[Any]) -> Build | None:
        builds = self._each((value.func, *value.args, *value.keywords.values()), True)
        if builds is None:
            return None
        count, names = len(value.args), tuple(value.keywords)

        def build(tensors: Sequence[Any], done: dict[Any, Any]) -> Any:
            function, *args = (build(tensors, done) for build in builds)
            return functools.partial(function, *args[:count], **dict(zip(names, args[count:], strict=True)))

        return build

    def _method(self, value: MethodType) -> Build | None:
        builds = self._each((value.__func__, value.__self__), False)
        if builds is None:
            return None
        return lambda tensors, done: MethodType(*[build(tensors, done) for build in builds])

    def _object(self, value: Any) -> Build | None:
        """How to make an object anew, with the attributes that it has now; it stays if the function assigns to some.

        Lists and dicts in it stay: the object may be older than this run, and they be meant to be changed.
        """
        parts = vars(value)
        if self.writes:
            self.stay(parts.values())
            return None
        builds = {name: make for name, part in parts.items() if (make := self.look(part, False)) is not None}
        if not builds:
            return None
        kind: Any = type(value)
        others = {name: part for name, part in parts.items() if name not in builds}

        def build(tensors: Sequence[Any], done: dict[Any, Any]) -> Any:
            made = kind.__new__(kind)
            vars(made).update(others)
            vars(made).update({name: build(tensors, done) for name, build in builds.items()})
            return made

        return build

    def _each(self, parts: Sequence[Any], own: bool) -> list[Build] | None:
        """How to make each of `parts`, if there is anything to make anew; what can stay is kept."""
        looked = [self.look(part, own) for part in parts]
        if not any(looked):
            return None
        return [build or _constantly(part) for build, part in zip(looked, parts, strict=True)]

    def _function(self, value: FunctionType) -> Build | None:
        self.assigns = self.assigns or _assigns(value.__code__)
        own = value.__code__ in self.made
        cells = value.__closure__ or ()
        contents = [self._cell(cell, own) for cell in cells]
        positional, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
        defaults = self._each((*positional, *keywords.values()), own)
        self.stay(value.__dict__.values())
        self._globals(value)
        if defaults is None and not any(contents):
            return None
        # What is kept must not hold the tensors.
        closure = [
            functools.partial(_cell, build) if build else _constantly(cell)
            for cell, build in zip(cells, contents, strict=True)
        ]
        defaults = defaults or [_constantly(each) for each in (*positional, *keywords.values())]
        count, names = len(positional), tuple(keywords)
        code, scope, name, attributes = value.__code__, value.__globals__, value.__name__, value.__dict__

        def build(tensors: Sequence[Any], done: dict[Any, Any]) -> FunctionType:
            given = [build(tensors, done) for build in defaults]
            inside = tuple(build(tensors, done) for build in closure)
            made = FunctionType(code, scope, name, tuple(given[:count]), inside)
            made.__kwdefaults__ = dict(zip(names, given[count:], strict=True))
            made.__dict__ = attributes
            return made

        return build

    def _globals(self, function: FunctionType) -> None:
        """Looks into the globals that the code names: tensors there stay, and this run may have assigned them."""
        scope, code = function.__globals__, function.__code__
        self.is_hiding = self.is_hiding or not _REACHING.isdisjoint(_names(code)) or len(self.known) > _MANY
        if len(self.known) > _MANY:
            return
        for name in _names(code):
            value = scope.get(name, vars(builtins).get(name))
            if not isinstance(value, FunctionType) or value.__globals__ is scope or _is_users(value):
                self.stay([value] if name in scope or self.is_tensor(value) else [])
        self.stay([sys.modules[name] for name in _imports(code) if name in sys.modules])

    def _cell(self, cell: CellType, own: bool) -> Build | None:
        try:
            value = cell.cell_contents
        except ValueError:  # nothing was assigned to it yet
            return None
        return self.look(value, own and id(cell) not in self.older)


def _constantly(value: Any) -> Build:
    return lambda tensors, done: value


def _cell(build: Build, tensors: Sequence[Any], done: dict[Any, Any]) -> CellType:
    return CellType(build(tensors, done))


def _once(build: Build, tensors: Sequence[Any], done: dict[Any, Any]) -> Any:
    if build not in done:
        done[build] = build(tensors, done)
    return done[build]


def _named_in(module: ModuleType, names: Sequence[str], is_tensor: Callable[[Any], bool]) -> list[Any]:
    """The attributes of a module with these names that may hold a tensor; of a library, the tensors among them."""
    inside = vars(module)
    parts = [inside[name] for name in names if name in inside]
    is_library = str(inside.get("__name__")).partition(".")[0] in _LIBRARIES
    return [part for part in parts if is_tensor(part) or (not is_library and part is not module)]


def _inside(value: Any) -> Sequence[Any]:
    """What something holds that cannot be made anew."""
    if isinstance(value, (set, frozenset, collections.deque)):
        return list(value)
    if isinstance(value, BuiltinMethodType):
        return [value.__self__]
    wrapped = getattr(value, "__wrapped__", None) if callable(value) and not isinstance(value, type) else None
    return [] if wrapped is None else [wrapped]


def _is_atom(value: Any) -> bool:
    """Whether something that is no tensor holds none either: a class may, and so may an array of objects."""
    if isinstance(value, numpy.ndarray):
        return bool(value.dtype != object)
    return isinstance(value, nest.ATOMS) and not isinstance(value, type)


def _is_plain_dataclass(value: Any) -> bool:
    """Whether an object is a dataclass, and its fields all that it has."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return set(getattr(value, "__dict__", ())) <= {field.name for field in dataclasses.fields(value)}


def _is_simple(value: Any) -> bool:
    """Whether an object is its attributes and nothing else, so that another with the same attributes will do.

    Modules and layers are not: they keep what they hold in dicts of their own, by a `__setattr__` of their own.
    """
    kind: Any = type(value)
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, (type, ModuleType))
        and kind.__setattr__ in (object.__setattr__, SimpleNamespace.__setattr__)
        and kind.__new__ in (object.__new__, SimpleNamespace.__new__)
        and not any("__slots__" in base.__dict__ or "__getattr__" in base.__dict__ for base in kind.__mro__)
    )


def _function(fun: Any) -> FunctionType | None:
    """The function inside methods, partials and callable objects."""
    while fun is not None and not isinstance(fun, FunctionType):
        called = type(fun).__call__
        fun = (
            getattr(fun, "__func__", None)
            or getattr(fun, "func", None)
            or (called if isinstance(called, FunctionType) else None)
        )
    return fun


@functools.lru_cache(maxsize=4096)
def _inner(code: CodeType) -> frozenset[CodeType]:
    """The code of all functions that a function makes."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(inner).union(*map(_inner, inner))


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[str, ...]:
    """The names of globals, and of attributes, that a function and those that it makes ask for."""
    return tuple(dict.fromkeys((*code.co_names, *(name for inner in _inner(code) for name in inner.co_names))))


@functools.lru_cache(maxsize=4096)
def _imports(code: CodeType) -> tuple[str, ...]:
    """The modules that a function, or one that it makes, imports."""
    steps = [step for made in (code, *_inner(code)) for step in dis.get_instructions(made)]
    return tuple(step.argval for step in steps if step.opname == "IMPORT_NAME")


def _is_dynamic(code: CodeType) -> bool:
    """Whether a function may reach what it does not name, or looks tensors up by identity."""
    return not _DYNAMIC.isdisjoint(_names(code))


@functools.lru_cache(maxsize=4096)
def _writes(code: CodeType) -> bool:
    """Whether a function, or one that it makes, assigns to attributes."""
    steps = [step for made in (code, *_inner(code)) for step in dis.get_instructions(made)]
    return any(step.opname in ("STORE_ATTR", "DELETE_ATTR") for step in steps)


@functools.lru_cache(maxsize=4096)
def _assigns(code: CodeType) -> bool:
    """Whether a function, or one that it makes, assigns to what it closes over."""
    return any(
        step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
        for step in dis.get_instructions(code)
    ) or any(map(_assigns, (each for each in code.co_consts if isinstance(each, CodeType))))
