"""Two small programs around `bwrap`, which run in an interpreter without packages.

`launcher` becomes bwrap by exec, and bwrap starts `prologue`. Both import only the standard library and, as `inside`,
the folder `cellblock.parts.INSIDE`. `prologue` also imports `runtime` and, as `bubblewrap`, the modules of this folder.
"""
