"""The backends `openbao` of an OpenBao or Vault server: secrets from a KV engine (version 2), and a signer whose key is
in a transit engine.

A value of a secret is read when a run needs it, and is never stored. The private key never leaves the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery_openbao.settings import OpenBaoSettings, TransitSettings, check_secrets, check_transit

if TYPE_CHECKING:
    from skillery_openbao.backend import OpenBaoSecrets
    from skillery_openbao.transit import OpenBaoSigner


def open_secrets(settings: OpenBaoSettings, _place: Place) -> OpenBaoSecrets:
    """Return the secrets. Raise StartupError if the settings are not valid. No request is sent."""
    # A server without this backend does not load the HTTP client.
    from skillery_openbao.backend import OpenBaoSecrets

    check_secrets(settings)
    return OpenBaoSecrets(settings)


def open_signer(settings: TransitSettings, _place: Place) -> OpenBaoSigner:
    """Return the signer. Raise StartupError if the settings are not valid. No request is sent."""
    from skillery_openbao.transit import OpenBaoSigner

    check_transit(settings)
    return OpenBaoSigner(settings)


@hookimpl
def skillery_secrets() -> Offer:
    return Offer("openbao", open_secrets, OpenBaoSettings)


@hookimpl
def skillery_signer() -> Offer:
    return Offer("openbao", open_signer, TransitSettings)
