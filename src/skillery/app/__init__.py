"""The only place where all parts meet."""

from skillery.app.building import create_app, open_services
from skillery.app.home import Home
from skillery.app.serving import serve

__all__ = ["Home", "create_app", "open_services", "serve"]
