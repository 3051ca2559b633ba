"""HTTP connections: limits on the size and duration of each phase of a connection, and on the number of connections.

uvicorn parses requests and writes responses. It does not limit the size of heads and trailers, and closes no slow
client.
"""

from skillery.app.connections.admission import ConnectionAdmission, ConnectionCount, OwnConnections
from skillery.app.connections.protocol import Connection
from skillery.app.connections.transport import Bounds

__all__ = ["Bounds", "Connection", "ConnectionAdmission", "ConnectionCount", "OwnConnections"]
