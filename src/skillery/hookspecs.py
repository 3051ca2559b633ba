"""All hooks. docs/reference/hooks.md has an example of each.

Four hooks offer backends. The settings choose one backend of each kind by name. Three hooks are events.
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
    """Check a version before it is stored. Called in a worker thread.

    A finding of severity `error` refuses the version (-32007) unless a reviewer has waived it. Other findings are
    kept with the version. If the hook raises, the version is refused.
    """


@hookspec
def after_publish(publication: Publication) -> None:
    """Called in a worker thread when a version is published and durable. An exception is logged and changes nothing."""


@hookspec
def run_finished(run: FinishedRun) -> None:
    """Called in a worker thread after a run has ended and is recorded. An exception is logged and changes nothing."""
