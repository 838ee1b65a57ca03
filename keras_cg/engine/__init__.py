"""What every backend needs and no framework knows.

`contract` says what a backend is. `held` opens a function or a rule and finds the tensors in it. `again` keeps one run
of a function for its backward pass, and compares a second run with it. `linear` answers whether a rule is linear.
`derived` makes of a backend's `attach` and `vjp` what it need not define.
"""
