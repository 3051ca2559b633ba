"""The authenticator `oidc`: callers send an access token of an OpenID Connect provider.

JSON Web Tokens are verified with the keys of the provider. Opaque tokens are verified by introspection, if the settings
allow it. Rules in the settings map the claims of a token to an identity. The verifier `oidc` checks the tokens of CI
jobs, for trusted publishing.
"""

from __future__ import annotations

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery_oidc.authenticator import OidcAuthenticator
from skillery_oidc.settings import OidcSettings, check_settings
from skillery_oidc.verifier import VerifierSettings, open_verifier


def open_authenticator(settings: OidcSettings, place: Place) -> OidcAuthenticator:
    check_settings(settings)
    return OidcAuthenticator(settings, place)


@hookimpl
def skillery_authenticator() -> Offer:
    return Offer("oidc", open_authenticator, OidcSettings)


@hookimpl
def skillery_verifier() -> Offer:
    return Offer("oidc", open_verifier, VerifierSettings)
