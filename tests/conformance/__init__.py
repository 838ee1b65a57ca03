"""Every rule of a zoo under every transform of every framework: right, or refused in so many words.

`zoo.py` has the rules, each with its closed form in NumPy; `transforms/<backend>.py` what a framework does to a
function; `truth.py` what must come out; `exceptions.py` the one table of what is refused, and why. A backend that lives
elsewhere runs the same suite: it names its table of transforms by an entry point of the group `keras_cg.transforms`.
"""
