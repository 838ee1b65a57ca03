"""The names that frameworks do not document: as the package uses them, and as docs/architecture.md lists them."""

import ast
import importlib
import pathlib
import pkgutil
import re
from typing import NamedTuple

import pages

ROOT = pathlib.Path(__file__).parent.parent
FRAMEWORKS = ("autograd", "jax", "keras", "numpy", "optree", "tensorflow", "torch")

# Modules without an underscore that are not documented, or may change at any time as they say.
MODULES = (
    "autograd.builtins",
    "autograd.core",
    "autograd.tracer",
    "jax.core",
    "jax.extend",
    "jax.interpreters",
    "keras.src",
    "tensorflow.python",
)
# Attributes likewise.
ATTRIBUTES = ("is_vjp", "outer_graph", "variable")
# Python documents the first two. The third is what torch's public `assume_constant_result` sets, as a test compares.
# The fourth is Python's own; without it, `os.environ` is asked.
PUBLIC = ("_make", "_replace", "_dynamo_marked_constant", "_data")


class Row(NamedTuple):
    """A line of the table; the names in full."""

    names: list
    why: str
    since: str
    without: str


def listed():
    """The table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text().partition("<!-- private names -->")[2]
    _, _, *rows = pages.rows(text.partition("<!-- /private names -->")[0])
    return [Row(_in_full(re.findall("`([^`]+)`", first)), *others) for first, *others in rows]


def _in_full(names):
    """After the first name of a line, those of the same module are written without it."""
    module = names[0].rpartition(".")[0]
    return [name if "." in name else f"{module}.{name}" for name in names]


def used(root=ROOT / "keras_cg"):
    """Each private name that the package uses, and whether some file reads it while it is imported.

    One that is read from an object, whose class the text does not tell, begins with a dot.
    """
    found = {}
    for path in sorted(root.rglob("*.py")):
        for name, at_import in _File(path.read_text()).found:
            found[name] = found.get(name, False) or at_import
    return {name: at_import for name, at_import in found.items() if not any(o.startswith(f"{name}.") for o in found)}


class _File(ast.NodeVisitor):
    def __init__(self, text):
        self.found, self.aliases, self.functions = [], {}, 0
        tree = ast.parse(text)
        self.own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        self.own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
        self.visit(tree)

    def add(self, name):
        if _is_private(name):
            self.found.append((name, self.functions == 0))

    def visit_Import(self, node):
        for each in node.names:
            self.add(each.name)
            self.aliases[each.asname or each.name.partition(".")[0]] = (
                each.name if each.asname else each.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node):
        for each in node.names:
            self.add(f"{node.module}.{each.name}")
            self.aliases[each.asname or each.name] = f"{node.module}.{each.name}"

    def visit_FunctionDef(self, node):
        for each in node.decorator_list:
            self.visit(each)
        self.functions += 1
        for each in node.body:
            self.visit(each)
        self.functions -= 1

    def visit_Lambda(self, node):
        self.functions += 1
        self.generic_visit(node)
        self.functions -= 1

    def visit_Attribute(self, node):
        parts, base = [node.attr], node.value
        while isinstance(base, ast.Attribute):
            parts, base = [base.attr, *parts], base.value
        if isinstance(base, ast.Name) and base.id in self.aliases:
            self.add(".".join([self.aliases[base.id], *parts]))
        else:
            self.attribute(node.attr)
            self.visit(node.value)

    def visit_Call(self, node):
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
            self.attribute(node.args[1].value)
        elif called == "_find" and isinstance(node.args[0], ast.Constant):  # of backends/jax/names.py
            self.add(f"jax.extend.core.{node.args[0].value}")
        self.generic_visit(node)

    def visit_Constant(self, node):
        # A module or a name that is looked up by its text.
        if isinstance(node.value, str) and re.fullmatch(r"[a-z_]+(\.\w+)+", node.value):
            self.add(node.value)

    def attribute(self, name):
        is_ours = name in self.own or name in PUBLIC or name.startswith("__")
        if (name.startswith("_") and not is_ours) or name in ATTRIBUTES:
            self.found.append((f".{name}", self.functions == 0))


def _is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_private(name):
    first, *others = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in others)
    return first in FRAMEWORKS and (hidden or any(f"{name}.".startswith(f"{module}.") for module in MODULES))


def resolve(name):
    """What a name in full stands for in the installed framework."""
    if name.startswith("jax.extend.core."):
        # The older releases have some of these in jax.core.
        return importlib.import_module("keras_cg.backends.jax.names")._find(name.rpartition(".")[2])
    return pkgutil.resolve_name(name)
