"""The settings of a server. The core may import the groups only; other packages, such as app and cli, use all settings
and their sources.
"""
