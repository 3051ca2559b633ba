"""The processor time that the authenticator `oidc` takes for one request: `python -m bench.single_sign_on`.

The provider is the one of the plugin's tests. It is asked for its keys once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from skillery.backends import Credentials, Place
from skillery.database import Database, migrate
from skillery.database.backend_values import BackendValues
from skillery_oidc import open_authenticator
from skillery_oidc.authenticator import OidcAuthenticator

sys.path.append(str(Path(__file__).parents[1] / "plugins/skillery-oidc/tests"))
CACHED, NEW = 20_000, 500


async def measure(home: Path) -> None:
    from oidc_here import OidcProvider, bearer, new_key, settings_of

    database = Database(f"sqlite:///{home / 'bench.db'}")
    migrate.upgrade(database)
    provider = OidcProvider()
    try:
        for algorithm in ("ES256", "RS256", "EdDSA"):
            provider.rotate(new_key(algorithm))
            values = BackendValues(database, "authenticator.oidc")
            one = open_authenticator(settings_of(provider), Place(home, values=values))
            await one.start()
            tokens = [bearer(provider.sign(jti=str(number))) for number in range(NEW)]
            new = await _microseconds(one, tokens)
            cached = await _microseconds(one, tokens[:20] * (CACHED // 20))
            print(f"{algorithm}: a new token {new:.0f} µs, a cached token {cached:.1f} µs")
            await one.close()
    finally:
        provider.close()
        database.close()


async def _microseconds(authenticator: OidcAuthenticator, credentials: list[Credentials]) -> float:
    """Return the mean processor time of a check. The list of revoked identities is read once a second."""
    began = time.process_time()
    for one in credentials:
        await authenticator.authenticate(one)
    return (time.process_time() - began) / len(credentials) * 1e6


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))
