"""The secrets backend `openbao`: values from the KV engine (version 2) of an OpenBao or Vault server.

A value is read when a run needs it, and is never stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery_openbao.settings import OpenBaoSettings

if TYPE_CHECKING:
    from skillery_openbao.backend import OpenBaoSecrets


def open_secrets(settings: OpenBaoSettings, _place: Place) -> OpenBaoSecrets:
    """Return the backend. Raise StartupError if the settings are not valid. No request is sent."""
    # A server with other secrets does not load the HTTP client.
    from skillery_openbao.backend import OpenBaoSecrets
    from skillery_openbao.settings import check_settings

    check_settings(settings)
    return OpenBaoSecrets(settings)


@hookimpl
def skillery_secrets() -> Offer:
    return Offer("openbao", open_secrets, OpenBaoSettings)
