"""The programs between the server and the code of a run: they build the sandbox, lock it and start the code.

They run as separate processes (`python -I -S -B`), and import only the standard library. `zygote` is the outer process.
The helper in C (folder native) forks runs in the zygote, sets them up as pid 1, and checks pid 2. Pid 1 then becomes
the program `init`, and pid 2 returns to the interpreter.
"""
