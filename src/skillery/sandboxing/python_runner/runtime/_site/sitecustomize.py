"""Let Python programs that a script starts import its packages and modules of its skill.

Python imports this module at its start if PYTHONPATH contains this folder. The folders come after the standard
library, which PYTHONPATH itself does not allow, and before the host's packages.
"""

import json
import os
import sys

TOLD = "SKILLERY_PYTHON"
INSTALLED = ("site-packages", "dist-packages")


def extend_path() -> None:
    told = json.loads(os.environ.get(TOLD, "null"))
    if told is None:
        return
    # Packages are built for one version of Python, and a script may start another version.
    packages = told["packages"] if told["version"] == list(sys.version_info[:2]) else []
    places = [place for place, folder in enumerate(sys.path) if folder.endswith(INSTALLED)]
    place = places[0] if places else len(sys.path)
    sys.path[place:place] = [*packages, told["root"]]


extend_path()
