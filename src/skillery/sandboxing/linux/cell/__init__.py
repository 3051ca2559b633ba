"""The programs between the server and the code of a run: they build the sandbox, lock it and start the code.

A separate program: started as `python -I -S -B`, it imports the standard library and nothing of the server. `zygote`
is the outer process, `inmate` runs inside the run's own namespaces.
"""
