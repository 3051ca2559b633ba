"""Skillery: keep, find, run and publish the skills of LLM agents."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pluggy

    hookimpl: pluggy.HookimplMarker
    __version__: str

__all__ = ["__version__", "hookimpl"]


def __getattr__(name: str) -> Any:
    """Return a public name of this package. The library for the name is imported when it is used for the first time.

    Compile workers import this package often, and need neither of these libraries.
    """
    if name == "hookimpl":
        import pluggy

        value: Any = pluggy.HookimplMarker("skillery")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("skillery")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
