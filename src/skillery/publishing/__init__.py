"""Publishing: check a bundle and store it as a version in the registry.

All checks come before the version is stored, and one transaction stores all its rows.
"""
