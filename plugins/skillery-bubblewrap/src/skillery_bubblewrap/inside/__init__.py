"""Two small programs around `bwrap`, for the bare interpreter.

`launcher` becomes bwrap by exec, and bwrap starts `prologue`. Both import the standard library and, as `cell`, the
folder `skillery.sandboxing.INSIDE`.
"""
