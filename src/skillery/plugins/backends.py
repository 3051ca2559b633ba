"""Backends as the core calls them: failures are counted by plugin, and reads have a time limit.

A call that changes something has no limit: Python cannot end a thread, so the change could take effect after its caller
was told that the call failed.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, NamedTuple, get_type_hints

from skillery.backends.values import Completed, Kind, is_left_out, methods_of
from skillery.errors import SkilleryError, StartupError, Unavailable
from skillery.plugins.calls import MOST_HANGING, Failures


class Watch(NamedTuple):
    """Names the plugin of a backend, counts its failures, and has the time limit of its reads."""

    plugin: str
    failures: Failures
    seconds: float

    def note(self, method: str, error: Exception) -> None:
        # These errors are answers. The caller logs the traceback of any other exception.
        if not isinstance(error, (SkilleryError, StartupError)):
            self.failures.note(self.plugin, method, "raised", type(error).__name__)

    def late(self, method: str) -> Unavailable:
        """Count a call that met the time limit, and return the error for its caller."""
        self.failures.note(self.plugin, method, "timed_out", f"no answer within {self.seconds:g} seconds")
        return self._unavailable()

    def hanging(self, method: str) -> Unavailable:
        """Count a call that is not made, because too many earlier calls hang. Return the error for its caller."""
        text = f"not called, because {MOST_HANGING} earlier calls have not returned"
        self.failures.note(self.plugin, method, "hangs", text)
        return self._unavailable()

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"the plugin '{self.plugin}' did not answer in time", hint="Try again later.")


class Watched(Completed):
    """A backend whose failures are counted, and whose reads have a time limit.

    Unexpected exceptions reach the caller unchanged. A read that takes too long raises Unavailable. A class with the
    attribute `is_local = True` waits for no service outside of the server, so its reads have no limit.
    """

    def __init__(self, backend: object, kind: Kind, watch: Watch) -> None:
        # Not inherited: a subclass may wait for a service.
        is_local = vars(type(backend)).get("is_local") is True

        def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            return _watched(method, name, watch, not is_local and name in kind.reads)

        super().__init__(backend, (kind.protocol, *kind.optional), watched)


def _watched(method: Callable[..., Any], name: str, watch: Watch, is_limited: bool) -> Callable[..., Any]:
    """Return the method, with its failures counted. With `is_limited`, the call also has a time limit."""
    if inspect.iscoroutinefunction(method):
        return _watched_async(method, name, watch, watch.seconds if is_limited else None)
    call = _LimitedRead(method, name, watch) if is_limited else method

    @wraps(method)
    def watched(*arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except Exception as error:
            watch.note(name, error)
            raise

    return watched


def _watched_async(method: Callable[..., Any], name: str, watch: Watch, seconds: float | None) -> Callable[..., Any]:
    """Return the async method, with its failures counted and a limit of `seconds` (None: no limit)."""
    if seconds is None:
        return _watched_without_limit(method, name, watch)

    @wraps(method)
    async def watched(*arguments: Any, **named: Any) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await method(*arguments, **named)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise watch.late(name) from None
            watch.note(name, error)
            raise

    return watched


def _watched_without_limit(method: Callable[..., Any], name: str, watch: Watch) -> Callable[..., Any]:
    """Return the async method, with its failures counted."""

    @wraps(method)
    async def watched(*arguments: Any, **named: Any) -> Any:
        try:
            return await method(*arguments, **named)
        except Exception as error:
            watch.note(name, error)
            raise

    return watched


class _LimitedRead:
    """Calls a blocking method in a new thread, and waits for a limited time.

    After that, the thread is abandoned. While MOST_HANGING threads are abandoned, all calls fail at once.
    """

    def __init__(self, method: Callable[..., Any], name: str, watch: Watch) -> None:
        self._method = method
        self._name = name
        self._watch = watch
        self._lock = threading.Lock()
        self._hanging = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return the result of the method. Raise Unavailable after the time limit, or if too many threads hang."""
        if self._hanging >= MOST_HANGING:
            raise self._watch.hanging(self._name)
        ended: Future[Any] = Future()
        work = partial(_end, ended, partial(copy_context().run, self._method, *arguments, **named))
        threading.Thread(target=work, name=f"{self._watch.plugin} {self._name}", daemon=True).start()
        try:
            return ended.result(self._watch.seconds)
        except TimeoutError:
            if ended.done():
                return ended.result()  # the method itself has raised it, or has just returned
            self._count(1)
            ended.add_done_callback(lambda _: self._count(-1))
            raise self._watch.late(self._name) from None

    def _count(self, change: int) -> None:
        with self._lock:
            self._hanging += change


def _end(ended: Future[Any], call: Callable[[], Any]) -> None:
    try:
        ended.set_result(call())
    except Exception as error:  # noqa: BLE001 - any error of a plugin
        ended.set_exception(error)
    except BaseException as error:  # noqa: BLE001 - SystemExit of a plugin would end the event loop
        ended.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))


# Comparison of a backend with its Protocol. The server does not start if they differ, for example if a method is
# missing.


def problems(backend: object, protocol: type) -> Iterator[str]:
    """Yield the differences between a backend and its Protocol. Each text is the end of a sentence: "lacks …" or "has
    …".

    Methods are compared by their kind (`async def` or `def`) and by the number of positional arguments. The names and
    annotations of parameters do not matter.
    """
    for name, hint in get_type_hints(protocol).items():
        yield from _attribute_problems(backend, name, hint)
    for name, member in vars(protocol).items():
        if isinstance(member, property):
            yield from _attribute_problems(backend, name, object)
    for name, method in methods_of(protocol).items():
        if not is_left_out(backend, method):
            yield from _method_problems(backend, name, method)


def _attribute_problems(backend: object, name: str, hint: Any) -> Iterator[str]:
    if not hasattr(backend, name):
        yield f"lacks {name}"
    elif hint is bool and not isinstance(getattr(backend, name), bool):
        yield f"has an attribute '{name}' that is not a bool, but {getattr(backend, name)!r:.80}"


def _method_problems(backend: object, name: str, protocol_method: Callable[..., Any]) -> Iterator[str]:
    """Yield the difference between a backend and one method of its Protocol, as `problems` does."""
    expected = _shown(name, protocol_method)
    method = getattr(backend, name, None)
    is_inherited = getattr(type(backend), name, None) is protocol_method and not hasattr(
        protocol_method, "__together__"
    )
    if method is None or is_inherited:
        yield f"lacks the method '{expected}'"
    elif not callable(method):
        yield f"has '{name}', which must be a method '{expected}'"
    elif not _takes(method, protocol_method) or _is_async(method) != _is_async(protocol_method):
        yield f"has '{_shown(name, method)}' in place of '{expected}'"


def _takes(method: Callable[..., Any], protocol_method: Callable[..., Any]) -> bool:
    """Return whether `method` accepts the arguments of `protocol_method`, with and without the optional ones."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return True  # the parameters of a C function are not known
    parameters = list(inspect.signature(protocol_method).parameters.values())[1:]
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
