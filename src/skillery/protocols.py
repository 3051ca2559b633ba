"""Compare a backend with its Protocol, so that a missing or wrong method stops the start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints


def problems(backend: object, protocol: type) -> Iterator[str]:
    """Yield each difference between the backend and the Protocol, as a clause that begins with a verb.

    Methods are compared by kind (`async def` or not) and by the number of positional arguments. Names and annotations
    of
    parameters may differ.
    """
    for name, hint in get_type_hints(protocol).items():
        yield from _attribute_problems(backend, name, hint)
    for name, member in vars(protocol).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield from _attribute_problems(backend, name, object)
        elif inspect.isfunction(member):
            yield from _method_problems(backend, name, member)


def _attribute_problems(backend: object, name: str, hint: Any) -> Iterator[str]:
    if not hasattr(backend, name):
        yield f"lacks {name}"
    elif hint is bool and not isinstance(getattr(backend, name), bool):
        yield f"has an attribute '{name}' that is not a bool, but {getattr(backend, name)!r:.80}"


def _method_problems(backend: object, name: str, wanted: Callable[..., Any]) -> Iterator[str]:
    expected = _shown(name, wanted)
    method = getattr(backend, name, None)
    if method is None:
        yield f"lacks the method '{expected}'"
    elif not callable(method):
        yield f"has '{name}', which must be a method '{expected}'"
    elif not _takes(method, wanted) or _is_async(method) != _is_async(wanted):
        yield f"has '{_shown(name, method)}' in place of '{expected}'"


def _takes(method: Callable[..., Any], wanted: Callable[..., Any]) -> bool:
    """Return whether the method accepts the same calls as the Protocol's method, with and without optional
    arguments.
    """
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return True  # of a C function nothing is known
    parameters = list(inspect.signature(wanted).parameters.values())[1:]
    required = sum(parameter.default is parameter.empty for parameter in parameters)
    try:
        for number in {required, len(parameters)}:
            signature.bind(*[None] * number)
    except TypeError:
        return False
    return True


def _is_async(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(method))


def _shown(name: str, method: Callable[..., Any]) -> str:
    try:
        signature = str(inspect.signature(method)).replace("'", "")
    except (TypeError, ValueError):
        signature = "(…)"
    return f"{'async ' if _is_async(method) else ''}def {name}{signature}"
