"""Every hook, on one screen. docs/reference/hooks.md has an example for each.

Four offer a backend; the settings choose one of each kind by name. Three are moments.
"""

from __future__ import annotations

import pluggy

from skillery.backends import Finding, FinishedRun, Offer, Publication

hookspec = pluggy.HookspecMarker("skillery")


@hookspec
def skillery_sandbox() -> Offer:  # type: ignore[empty-body]
    """Offer a Sandbox, chosen by the setting `sandbox`."""


@hookspec
def skillery_storage() -> Offer:  # type: ignore[empty-body]
    """Offer a Storage, chosen by the setting `storage`."""


@hookspec
def skillery_authenticator() -> Offer:  # type: ignore[empty-body]
    """Offer an Authenticator, chosen by the setting `auth`."""


@hookspec
def skillery_secrets() -> Offer:  # type: ignore[empty-body]
    """Offer a Secrets, chosen by the setting `secrets`."""


@hookspec
def before_publish(publication: Publication) -> list[Finding]:  # type: ignore[empty-body]
    """Look at a version before anything of it is claimed. A finding of severity `error` refuses it (-32007) unless a
    reviewer has waived it; others are kept with it. A hook that raises refuses it too. Called in a worker thread."""


@hookspec
def after_publish(publication: Publication) -> None:
    """A version is published and durable. An exception is logged and changes nothing. Called in a worker thread."""


@hookspec
def run_finished(run: FinishedRun) -> None:
    """A run has ended and is recorded. An exception is logged and changes nothing. Called in a worker thread."""
