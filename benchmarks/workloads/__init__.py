"""What is timed, and what must come out of it; a file for each framework has the same names in the same order.

`setup()`: One thread, and whatever else the framework must be told.
`tensor(array)`: NumPy's array as a tensor.
`array(tensor)`: The other way.
`wait(nest)`: Returns it when it is computed.
`log1pexp()`, `log1pexp_twice()`, `pair()`, `leaves()`, `straight_through()`, `spike()`: The contestants of a workload,
    by name: the function with its gradient, or words that say why there is none. `log1pexp_twice` may be
    differentiated twice.
`learned_step()`: The same with two functions for each, one for weights and one for activations.
`calls`: By a title, `(function, arguments) -> program` that calls the function without differentiating it.
`vjp(function, arguments)`: A program that runs forward and returns `(outputs, backward)`, for an upstream of ones.
`gradient(function, arguments)`: A program for the gradient of the sum of the output, as people write it.
`second_order(function, arguments)`: A program for the gradient of the sum of that.
`compilers`: By a title, `(function, arguments) -> program` that gives `(outputs, gradients)`, compiled.
`trace(function, arguments)`: A program that traces the gradient again.
`TRACED`: `(what that is, how many calls the traced function makes, rounds)`.
`CLOCK`: The clock of eager calls: `time.thread_time`, if all the work is that of the thread that calls.
`CHAIN`: How many calls the chain has in eager mode.
`held(function, arguments)`: The bytes of the arrays that are held between forward and backward, as the framework counts
    them, or None if it does not.

The contestants all compute with the framework's own functions, and their rules are in the form that most of them take.
"""
