"""Parts that every backend needs, and that know no framework.

`contract` says what a backend defines, and `defaults` has what it may leave out. `functions` reads the code of
functions. `references` lists what a value holds, and `reach` what a function reaches. `world` puts back what a run
found and left, and `ground` knows of most functions that nothing changes; `comparing` compares two runs as data.
`linear` tries whether a rule is linear in upstream. `precision` has the tolerances of each dtype, and `messages` the
texts of errors.
"""
