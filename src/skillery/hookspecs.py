"""All hooks that plugins can implement. docs/reference/hooks.md has an example of each.

Six hooks offer backends, of which the settings choose one of each kind by name. Two hooks offer verifiers of CI jobs
and of Sigstore bundles.
Four hooks get events. One hook offers an object with settings, whose methods get events. One hook adds commands to the
command line. One hook adds pages and endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

from skillery.backends import Event, Finding, FinishedRun, Offer, Publication

if TYPE_CHECKING:
    import click

    from skillery.routes import Route

hookspec = pluggy.HookspecMarker("skillery")


@hookspec
def skillery_sandbox() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Sandbox. The setting `sandbox` chooses the Offer by name."""


@hookspec
def skillery_storage() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Storage. The setting `storage` chooses the Offer by name."""


@hookspec
def skillery_authenticator() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of an Authenticator. The setting `auth` names one or several Offers."""


@hookspec
def skillery_secrets() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Secrets. The setting `secrets` chooses the Offer by name."""


@hookspec
def skillery_ranker() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Ranker. The setting `ranker` chooses the Offer by name; without it, there is no ranker."""


@hookspec
def skillery_signer() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Signer. The setting `signing.key` chooses the Offer by name."""


@hookspec
def skillery_verifier() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a Verifier, for trusted publishing. If a plugin offers one, the server opens it."""


@hookspec
def skillery_sigstore() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of a SigstoreVerifier. If a plugin offers one, the server opens it."""


@hookspec
def skillery_plugin() -> Offer:  # type: ignore[empty-body]
    """Return an Offer of an object whose methods are hooks for events. Its settings are in `[plugins.<name>]`.

    A server opens the object if its settings have this section. A method `close()` is called when the server ends.
    """


@hookspec
def commands() -> list[click.Command]:  # type: ignore[empty-body]
    """Return commands for the command line `skillery`. Called only if a command is not built in, and for --help."""


@hookspec
def routes() -> list[Route]:  # type: ignore[empty-body]
    """Return pages and endpoints, which the server answers below `/x/<plugin>/`. Called once, when a server starts."""


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


@hookspec
def events(event: Event) -> None:
    """React to an event of the outbox. Called in a worker thread after the change is committed, in the order of the
    changes. Of all servers of a database, one calls the hook. An exception is only logged.
    """
