"""`keras.ops.custom_gradient` and ours, side by side: what each does with the same program.

`cases.py`     the programs, and what is true of each.
`harness.py`   runs all the programs of a backend with one of the two, in a process of its own.
`report.py`    runs them all, and renders `docs/reports/keras_parity.md`.
`test_parity`  compares with the page, which `--write` and `nox -s parity` write.

What a program comes to is one of:

`RIGHT`        the numbers are those of the closed form.
`REFUSED`      a clear error: the one that the case declares, ours or the framework's own.
`ERROR`        another error: of a program that has an answer, or one that does not say what is wrong.
`WRONG`        silently wrong: other numbers, or any number where an error is expected.
`OTHERWISE`    other behaviour: the program asks a question whose answer is no number, such as whether memory is freed.
`NO_GRADIENT`  whatever comes after the warning that no rule is ever used on this backend.
"""

RIGHT, REFUSED, ERROR, WRONG, NO_GRADIENT = "right", "clear error", "error", "silently wrong", "no gradient"
OTHERWISE = "other behaviour"

KERAS, OURS = "keras.ops", "keras_cg"
