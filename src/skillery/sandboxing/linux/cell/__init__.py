"""What runs between the server and the code of a run: it builds the place, locks it and lets the code in.

A program of its own: started as `python -I -S -B`, it imports the standard library and nothing of the server. `zygote`
is the outer process, `inmate` what happens inside the run's own namespaces.
"""
