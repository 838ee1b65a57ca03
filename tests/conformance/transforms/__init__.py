"""What each framework does to a function: one file each, the same names in the same order.

`tensor(array)`, `array(tensor)`  as in `frameworks`.
`take(x, rows)`, `uniform()`, `as_complex(x)`, `fft(z)`, `ifft(z)`  what the namespaces have no common name for.
`TRANSFORMS`                      by name, `(kind, run)`: `run(problem)` does it and gives a list of tensors,
                                  which must be what the method `kind` of `truth.Case` says.

A `problem` has `f`, a function of tensors that gives a list of outputs; `tensors` to call it with; `weights`, one for
each output; `c` and `d`, one for each argument; and `batch`, the arguments for two points, stacked.
"""
