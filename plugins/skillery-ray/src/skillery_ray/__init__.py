"""The sandbox `ray`: nodes of an existing Ray cluster run the code, and this server only sends jobs.

The server itself needs no sandbox. Each node runs code in its own sandbox, `linux` by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery.errors import StartupError
from skillery_ray.settings import RaySettings

if TYPE_CHECKING:
    from skillery_ray.sandbox import RaySandbox


def open_sandbox(settings: RaySettings, place: Place) -> RaySandbox:
    """Return the sandbox. Raise StartupError if a setting is wrong."""
    # A server with another sandbox does not load these modules.
    from skillery_ray.engines import check_backend
    from skillery_ray.sandbox import RaySandbox

    if settings.pending < 1:
        raise StartupError("[backends.sandbox.ray]: 'pending' must be at least 1")
    check_backend(settings.backend, settings.node)
    return RaySandbox(settings, place)


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="ray", open=open_sandbox, settings=RaySettings)
