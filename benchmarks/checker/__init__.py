"""How much the checker finds: right rules, each with many kinds of planted faults, on every backend.

`rules/`      the right rules, written once with `keras_cg.ops`, each with its output and gradient by hand in NumPy.
`faults.py`   the kinds of faults, each made of any right rule.
`truth.py`    whether a fault makes a difference to a rule: by those closed forms, and never by the checker.
`native.py`   what the frameworks check gradients with themselves, on the same rules and faults.
`measure.py`  checks the rules and faults of one backend, in a process of its own, and writes down what was said.
`report.py`   starts those processes, and writes `docs/reports/checker.md` with its figures: `nox -s power`.
"""
