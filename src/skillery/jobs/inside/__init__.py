"""The guest of Skillery in runs of `cellblock`: pictures of the output, and fonts.

Inside a run, these files are modules of the package `runtime`. They import only it and the standard library.
"""
