"""The default backends. They are registered like any plugin: by entry points of the group `skillery`."""
