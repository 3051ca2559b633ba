"""The guest of Skillery in runs of `cellblock`: files before and after the code, pictures of the output, scripts.

Inside a run, these files are modules of the package `runtime`. They import only it and the standard library.
"""
