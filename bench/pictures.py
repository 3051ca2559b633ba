"""`make pictures`: the pictures of the pages in docs/guide/pictures, from a new server and a real browser."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import Page, ViewportSize, async_playwright

from skillery.client import Client
from tests.conftest import Server
from tests.support.chromium import CHROMIUM
from tests.support.processes import eventually

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "docs" / "guide" / "pictures"
SIZE: ViewportSize = {"width": 1200, "height": 760}
CODE = """\
import csv
import os


def main(args):
    rows = [{"order": number, "total": number * 10} for number in range(1, args["orders"] + 1)]
    for row in rows:
        print("order", row["order"], "total", row["total"])
    os.makedirs("out", exist_ok=True)
    with open("out/orders.csv", "w") as file:
        writer = csv.DictWriter(file, ["order", "total"])
        writer.writeheader()
        writer.writerows(rows)
    total = sum(row["total"] for row in rows)
    return {"orders": len(rows), "total": total, "average": total / len(rows)}
"""
NOTEBOOK_CODE = """\
import json
import os

TABLE = "<table><tr><th>day</th><th>orders</th></tr><tr><td>Monday</td><td>12</td></tr></table>"


def main(args):
    shown = {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": {"text/html": TABLE}}
    code = {"cell_type": "code", "execution_count": 1, "metadata": {}, "source": "orders.by_day()", "outputs": [shown]}
    text = {"cell_type": "markdown", "metadata": {}, "source": "## Orders by day\\n\\nThe shop was open on one day."}
    os.makedirs("out", exist_ok=True)
    with open("out/report.ipynb", "w") as file:
        json.dump({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [text, code]}, file)
    return {"days": 1}
"""
SCRIPT = """\
\"\"\"Split a file of orders into one file for each customer.

Usage: split.py ORDERS
\"\"\"

import sys

print("orders in", sys.argv[1])
"""
MANIFEST = {
    "name": "shop.orders",
    "description": "Export the orders of a day as CSV.",
    "kind": "action",
    "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "main"},
    "tags": ["shop", "csv"],
    "inputs": {"orders": {"type": "integer", "description": "Number of orders", "required": True}},
}
FIRST = "# Orders\n\nExport the orders of a day. Write one row for each order, and the total at the end.\n"
SECOND = "# Orders\n\nExport the orders of a day from the shop. Write one row for each order, with its customer.\n"
NONE: dict[str, list[str]] = {}
PERMISSIONS = {"network": ["https://api.shop.example"], "secrets": ["SHOP_TOKEN"]}


def create_token(server: Server, *words: str) -> str:
    command = [str(Path(sys.executable).with_name("skillery")), "token", "create", *words, "--json"]
    made = subprocess.run([*command, "--home", str(server.home)], capture_output=True, text=True, check=True)
    token: str = json.loads(made.stdout)["token"]
    return token


class Runs(NamedTuple):
    """The ids of the runs of two pictures."""

    completed: str
    notebook: str


def fill(url: str, eve: str, agent: str) -> Runs:
    """Publish skills, let an agent publish the next version of one, and run them."""
    with Client(url, token=eve) as client, Client(url, token=agent) as other:
        versions = ((client, "1.0.0", FIRST, NONE), (other, "1.1.0", SECOND, PERMISSIONS))
        for publisher, version, skill_md, permissions in versions:
            publisher.create_skill(
                manifest={**MANIFEST, "version": version, "permissions": permissions},
                skill_md=skill_md,
                files=[{"path": "code/main.py", "content": CODE}],
            )
        report = {**MANIFEST, "name": "shop.report", "version": "1.0.0", "description": "Report the orders of a week."}
        client.create_skill(
            manifest={**report, "inputs": {}},
            skill_md="# Report\n",
            files=[{"path": "code/main.py", "content": NOTEBOOK_CODE}],
        )
        split = {"name": "shop.split", "version": "1.0.0", "kind": "instruction", "description": "Split orders."}
        client.create_skill(
            manifest=split,
            skill_md="# Split\n\nRun scripts/split.py.\n",
            files=[{"path": "scripts/split.py", "content": SCRIPT}],
        )
        for caller, numbers in ((client, [*range(1, 19), 0, 0]), (other, [5, 8, 13, 21, 0])):
            for number in numbers:
                caller.execute_skill("shop.orders", version="1.0.0", args={"orders": number})
        blob = client.create_blob("city,people\nOslo,700000\nRome,2800000\n", kind="text/csv")["blob_id"]
        client.execute_skill("text.csv.profile", args={"csv_blob": blob}, input_blobs=[blob])
        completed = client.execute_skill("shop.orders", version="1.0.0", args={"orders": 12})["run_id"]
        notebook = client.execute_skill("shop.report")["run_id"]
        eventually(lambda: client.get_activity()["total"]["runs"] == 28)
        return Runs(completed, notebook)


async def take(url: str, token: str, runs: Runs) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport=SIZE, color_scheme="light")
        await _open(page, f"{url}/login")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        for name, address in (
            ("catalogue", "/?sort=used"),
            ("skill", "/s/shop.orders"),
            ("review", "/review/shop.orders@1.1.0"),
            ("run", f"/runs/{runs.completed}"),
            ("notebook", f"/runs/{runs.notebook}"),
            ("script", "/s/shop.split/scripts/scripts/split.py"),
            ("failures", "/insight/failures"),
            ("insight", "/insight"),
        ):
            await _open(page, f"{url}{address}")
            await page.screenshot(path=PLACE / f"{name}.png")
        await browser.close()


async def _open(page: Page, address: str) -> None:
    response = await page.goto(address, wait_until="networkidle")
    if response is None or response.status != 200:
        raise SystemExit(f"{address} answers with {response and response.status}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "home", env={"SKILLERY_AUTH": "tokens"})
        try:
            eve = create_token(server, "--name", "eve", "--scope", "read,run,publish,review,admin", "--namespace", "*")
            agent = create_token(
                server, "--name", "order-agent", "--scope", "read,run,publish", "--namespace", "shop.*", "--agent"
            )
            asyncio.run(take(server.url, eve, fill(server.url, eve, agent)))
        finally:
            server.stop()
    print(f"written: {PLACE}", file=sys.stderr)


if __name__ == "__main__":
    main()
