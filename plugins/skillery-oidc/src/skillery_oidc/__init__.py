"""The authenticator `oidc`: callers send an access token of an OpenID Connect provider.

JSON Web Tokens are verified with the keys of the provider. Opaque tokens are verified by introspection, if the settings
allow it. Rules in the settings map the claims of a token to an identity. The verifier `oidc` checks the tokens of CI
jobs, for trusted publishing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery_oidc.settings import OidcSettings, VerifierSettings, check_settings

if TYPE_CHECKING:
    from skillery_oidc.authenticator import OidcAuthenticator
    from skillery_oidc.verifier import IssuersVerifier


# Every command of Skillery loads the plugin, and few open a backend: the imports in the functions take 0.12 s.
def open_authenticator(settings: OidcSettings, place: Place) -> OidcAuthenticator:
    from skillery_oidc.authenticator import OidcAuthenticator

    check_settings(settings)
    return OidcAuthenticator(settings, place)


def open_verifier(settings: VerifierSettings, place: Place) -> IssuersVerifier:
    from skillery_oidc.verifier import open_verifier

    return open_verifier(settings, place)


@hookimpl
def skillery_authenticator() -> Offer:
    return Offer("oidc", open_authenticator, OidcSettings)


@hookimpl
def skillery_verifier() -> Offer:
    return Offer("oidc", open_verifier, VerifierSettings)
