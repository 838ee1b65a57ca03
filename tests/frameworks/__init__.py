"""How the tests reach a framework: one file each, the same names in the same order.

`MODES`                          the ways to run a function, by name: eagerly, and every way to compile.
`tensor(array)`                  a NumPy array as the framework's tensor.
`array(tensor)`                  and back.
`differentiate(f, arrays, mode)` `(f(*arrays), gradients)` by the framework's own engine and nothing of keras_cg:
                                 the gradients of the sum of what `f` returns, None where the framework has none.
`vjp(f, x, way)`                 `(f(x), pullback)` by the framework's own engine: `pullback(upstream)` is the gradient
                                 of x, and can be differentiated again. `way` is "native", or "transformed", which is
                                 another where the framework has a second engine.
`gradient(f, way)`               the function that gives the gradient of the sum of `f`, by `vjp`; "transformed" is
                                 compiled where the framework compiles derivatives of any order.
`batched(f, x)`                  `f` of every row of `x` by the framework's own means, where it has some.

A backend that lives elsewhere names such a module by an entry point of the group `keras_cg.frameworks`.
"""

import importlib
import importlib.metadata


def native(name):
    """The file of the framework behind a backend."""
    for point in importlib.metadata.entry_points(group="keras_cg.frameworks", name=name):
        return point.load()
    return importlib.import_module(f"frameworks.{name}")
