"""The programs between the server and the code of a run: they build the sandbox, lock it and start the code.

They run as separate processes (`python -I -S -B`), and import only the standard library. `zygote` is the outer process.
The helper in C (folder native) runs inside the namespaces of a run until its code starts.
"""
