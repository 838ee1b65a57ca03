"""How the tests reach a framework: one file each, the same names in the same order.

`MODES`                          the ways to run a function, by name: eagerly, and every way to compile.
`tensor(array)`                  a NumPy array as the framework's tensor.
`array(tensor)`                  and back.
`differentiate(f, arrays, mode)` `(f(*arrays), gradients)` by the framework's own engine and nothing of keras_cg:
                                 the gradients of the sum of what `f` returns, None where the framework has none.
`Foreign`                        nothing of this framework may be taken by another: makes a tensor to try it.
"""
