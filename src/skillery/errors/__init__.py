"""Errors that callers get. There are a few kinds, and subclasses of these kinds.

The core raises these errors. Only `methods.errors` and the endpoints know their JSON-RPC codes and HTTP statuses. The
message names the thing and the value, `hint` is the remedy. Callers see both, so they must not contain a path of the
host, SQL or a traceback.
"""

from skillery.errors.kinds import *  # noqa: F403 - this package is public, and has the names of both modules
from skillery.errors.subjects import *  # noqa: F403
