"""HTTP connections: bounds on the size and the time of each phase, and on the number of connections.

uvicorn parses requests and writes answers. It bounds neither a head nor what follows a body, and closes no slow client.
"""

from skillery.app.connections.admission import Admission, ConnectionCount
from skillery.app.connections.bounds import Bounds
from skillery.app.connections.protocol import Connection

__all__ = ["Admission", "Bounds", "Connection", "ConnectionCount"]
