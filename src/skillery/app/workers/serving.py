"""Start a server with several worker processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from skillery.app.home import Home
from skillery.app.server import announce_at, listening
from skillery.app.workers.shared_counts import SharedCounts
from skillery.app.workers.supervisor import Supervisor, check_workers, import_all
from skillery.app.workers.worker import Common, LoopFactory, become_worker
from skillery.plugins import Plugins
from skillery.settings.load import Settings

BACKLOG = 2048
"""Connections that wait in the kernel until a worker accepts them, as with one process."""


def serve_with_workers(
    settings: Settings,
    load: Callable[[], Settings],
    plugins: Plugins,
    loop_factory: LoopFactory,
    announce: Callable[[str, str | None], None],
) -> None:
    """Serve requests in `settings.workers` processes until SIGTERM or SIGINT. Raise StartupError if one cannot start.

    `load` reads the settings again for SIGHUP. `announce` is called as by `serve`.
    """
    check_workers(settings)
    home = Home(settings.home)
    try:
        (home.path / "workers").mkdir(mode=0o700, exist_ok=True)
        with listening(settings) as listener:
            listener.listen(BACKLOG)
            counts = SharedCounts(settings.workers, home.path / "workers" / "slots")
            import_all()
            Supervisor(
                settings,
                counts,
                partial(become_worker, Common(plugins, listener, counts, loop_factory)),
                load,
                partial(announce_at, home, settings, listener, announce),
            ).run()
    finally:
        home.close()
