"""Skill folders before they are published: create a folder, run its examples and its tests.

This package imports little, so that the commands of authors start quickly.
"""
