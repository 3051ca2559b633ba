"""The parts of the server that the endpoints of `/v1/skills` use."""

from __future__ import annotations

from typing import NamedTuple

from skillery.api.exports import DownloadParts
from skillery.context.budget import Bodies
from skillery.database.registry import Registry
from skillery.edge.gate import Gate
from skillery.importing import Importer


class V1Parts(NamedTuple):
    """The parts of the server that the endpoints of `/v1/skills` use."""

    gate: Gate
    registry: Registry
    importer: Importer
    downloads: DownloadParts
    bodies: Bodies
