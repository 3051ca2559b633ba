"""The checks of the secrets at the start of a server: engine, and the right to read."""

from __future__ import annotations

import logging

from skillery_openbao.failures import ServiceFailed
from skillery_openbao.session import Session
from skillery_openbao.settings import OpenBaoSettings

log = logging.getLogger(__name__)
PROBE = "skillery_start_check"


async def check_service(settings: OpenBaoSettings, session: Session) -> None:
    """Check the engine. Raise ServiceFailed with the wrong setting."""
    await _check_engine(settings, session)
    if not settings.paths:
        await _check_right(settings, session)


async def _check_engine(settings: OpenBaoSettings, session: Session) -> None:
    """Raise ServiceFailed if the engine at the setting `mount` is not KV version 2, as far as the policy lets this
    server see it.
    """
    mount = settings.mount
    # The programs `bao` and `vault` request the same path before they read an entry.
    answer = await session.send("GET", f"sys/internal/ui/mounts/{mount}")
    if answer.status == 403:
        namespace = f"the namespace '{settings.namespace}'" if settings.namespace else "the root namespace"
        raise ServiceFailed(
            "mount", f"there is no engine '{mount}' in {namespace}, or the policy permits nothing in it"
        )
    engine = answer.part("data")
    if not engine:
        return
    if engine.get("type") not in {"kv", "generic"}:
        raise ServiceFailed("mount", f"the engine '{mount}' is not of the type kv")
    options = engine.get("options")
    if not isinstance(options, dict) or options.get("version") != "2":
        raise ServiceFailed(
            "mount", f"the engine '{mount}' has version 1: choose another, or run `bao kv enable-versioning {mount}`"
        )


async def _check_right(settings: OpenBaoSettings, session: Session) -> None:
    folder = f"{settings.mount}/data/" + (f"{settings.prefix}/" if settings.prefix else "")
    if (await session.send("GET", folder + PROBE)).status == 403:
        log.warning("the policy of the token does not permit 'read' on '%s*'", folder)
