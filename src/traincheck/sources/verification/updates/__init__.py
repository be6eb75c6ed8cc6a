"""Updates: the documented algorithms of optimizers in exact arithmetic, with a bound on the rounding of each element.

`algorithms` lists them; `comparison` holds an update against one of them.
"""
