"""The guest of Skillery in runs of `cellblock`: skills, blobs, files before and after the code, pictures, programs.

Inside a run, these files are modules of the package `runtime`. They import only it and the standard library.
"""
