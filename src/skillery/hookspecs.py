"""All hooks of plugins. docs/reference/hooks.md has an example of each.

Four hooks offer backends, of which the settings choose one by name. Three hooks are events.
"""

from __future__ import annotations

import pluggy

from skillery.backends import Finding, FinishedRun, Offer, Publication

hookspec = pluggy.HookspecMarker("skillery")


@hookspec
def skillery_sandbox() -> Offer:  # type: ignore[empty-body]
    """Offer a Sandbox. The setting `sandbox` chooses it by name."""


@hookspec
def skillery_storage() -> Offer:  # type: ignore[empty-body]
    """Offer a Storage. The setting `storage` chooses it by name."""


@hookspec
def skillery_authenticator() -> Offer:  # type: ignore[empty-body]
    """Offer an Authenticator. The setting `auth` chooses it by name."""


@hookspec
def skillery_secrets() -> Offer:  # type: ignore[empty-body]
    """Offer a Secrets. The setting `secrets` chooses it by name."""


@hookspec
def before_publish(publication: Publication) -> list[Finding]:  # type: ignore[empty-body]
    """Check a version before it is stored. The hook runs in a worker thread.

    A finding of severity `error` refuses the version (-32007), unless a reviewer has waived it. Other findings are
    stored
    with the version. If the hook raises an exception, the version is refused.
    """


@hookspec
def after_publish(publication: Publication) -> None:
    """React to a version that is published and stored. The hook runs in a worker thread; its exceptions are only
    logged.
    """


@hookspec
def run_finished(run: FinishedRun) -> None:
    """React to a run that has ended and is recorded. The hook runs in a worker thread; its exceptions are only
    logged.
    """
