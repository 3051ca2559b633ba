"""Make packages and the folder of a program importable for Python programs that this program starts.

Python imports this module at its start if PYTHONPATH contains this folder. The folders are added after the standard
library, where PYTHONPATH cannot put them, and before the packages of the host.
"""

import json
import os
import sys

TOLD = "CELLBLOCK_PYTHON"
INSTALLED = ("site-packages", "dist-packages")
PROGRAMS = "/run/cellblock/bin"  # a program there can also be a module, for `python -m`


def extend_path() -> None:
    description = json.loads(os.environ.get(TOLD, "null"))
    if description is None:
        return
    # Packages are built for one version of Python, and a script may start another version.
    packages = description["packages"] if description["version"] == list(sys.version_info[:2]) else []
    places = [place for place, folder in enumerate(sys.path) if folder.endswith(INSTALLED)]
    place = places[0] if places else len(sys.path)
    sys.path[place:place] = [*packages, description["root"]]
    sys.path.append(PROGRAMS)


extend_path()
