"""Render packaging/chart with Helm: `python -m tests.support.chart` reads values as JSON, and prints JSON.

A process of its own, because Helm is a library in Go. PYTHONPATH has to contain the packages that `make` installs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "packaging" / "chart"
HELM = ROOT / ".tools" / "helm"
KUBERNETES = ("1.33", "1.37")
RELEASE = "skills"


def rendered(values: dict[str, Any]) -> dict[str, Any]:
    """Return `documents`, the `problems` that Helm finds, and those of the `schemas` of Kubernetes."""
    command = [sys.executable, "-m", "tests.support.chart"]
    environment = {**os.environ, "PYTHONPATH": str(HELM)}
    done = subprocess.run(
        command, input=json.dumps(values), env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def main() -> None:
    from helm_python.chart import Chart, lint  # type: ignore[import-not-found]
    from kubernetes_validate import ValidationError, validate  # type: ignore[import-not-found]

    values = json.load(sys.stdin)
    texts = Chart.load(CHART).render(values, name=RELEASE, namespace="default").values()
    documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
    schemas = []
    for document in documents:
        if document["apiVersion"] == "ray.io/v1":
            continue  # the operator has its schema
        for version in KUBERNETES:
            try:
                validate(document, version, strict=True)
            except ValidationError as error:
                schemas.append(f"{document['kind']}, Kubernetes {version}: {error}")
    problems = [problem for problem in lint(CHART, values)["messages"] if problem["severity"] > 1]
    json.dump({"documents": documents, "problems": problems, "schemas": schemas}, sys.stdout)


if __name__ == "__main__":
    main()
