"""Parts that every backend needs, and that know no framework.

`contract` says what a backend defines, and `defaults` has what it may leave out. `freezing` copies the rule of a run;
`rule` compares it with the rule of another run. `linear` tries whether a rule is linear in upstream. `precision` has
the tolerances of each dtype, and `messages` the texts of errors.
"""
