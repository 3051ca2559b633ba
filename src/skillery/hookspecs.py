"""All hooks that plugins can implement. docs/reference/hooks.md has an example of each.

Four hooks offer backends, of which the settings choose one of each kind by name. Three hooks get events.
"""

from __future__ import annotations

import pluggy

from skillery.backends import Finding, FinishedRun, Offer, Publication

hookspec = pluggy.HookspecMarker("skillery")


@hookspec
def skillery_sandbox() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Sandbox. The setting `sandbox` chooses the Offer by name."""


@hookspec
def skillery_storage() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Storage. The setting `storage` chooses the Offer by name."""


@hookspec
def skillery_authenticator() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of an Authenticator. The setting `auth` chooses the Offer by name."""


@hookspec
def skillery_secrets() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Secrets. The setting `secrets` chooses the Offer by name."""


@hookspec
def before_publish(publication: Publication) -> list[Finding]:  # type: ignore[empty-body]
    """Check a version before it is stored, and return the findings. Called in a worker thread.

    A finding of severity `error` refuses the version (-32007), unless a reviewer has waived its rule. Other findings
    are stored with the version. If the hook raises an exception, the version is refused.
    """


@hookspec
def after_publish(publication: Publication) -> None:
    """React to a published version. Called in a worker thread after the version is stored. An exception is only
    logged.
    """


@hookspec
def run_finished(run: FinishedRun) -> None:
    """React to a run that has ended. Called in a worker thread after the run is recorded. An exception is only
    logged.
    """
