"""The work on a skill before it is published: make its folder, and run its examples and tests from there.

Importing this package is cheap: a command of an author answers within a second.
"""
