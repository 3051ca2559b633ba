"""Comparison of a backend with its Protocol. The server does not start if they differ, for example if a method is
missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints


def problems(backend: object, protocol: type) -> Iterator[str]:
    """Yield the differences between a backend and its Protocol. Each text is the end of a sentence: "lacks …" or "has
    …".

    Methods are compared by their kind (`async def` or `def`) and by the number of positional arguments. The names and
    annotations of parameters do not matter.
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
    """Return whether `method` accepts the arguments of the method `wanted` of the Protocol, with and without the
    optional ones.
    """
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return True  # the parameters of a C function are not known
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
