"""The web pages at 10 k or 100 k skills: time of the server, bytes of visits, and what a browser measures."""

from __future__ import annotations

import asyncio
import gzip
import time
from pathlib import Path

import httpx
import psycopg

from bench.catalogue import fill
from bench.report import Report, format_ms, median, percentile
from skillery.database import Database, migrate
from tests.conftest import Server
from tests.support.chromium import CHROMIUM
from tests.support.postgres import running_postgres

CALLS = 60
NAME = "bench.pages"
PAGES = {
    "healthz": "/healthz",
    "catalogue": "/",
    "catalogue, filters": "/?kind=action&network=no&sort=newest",
    "search": "/?q=csv+columns",
    "skill": f"/s/{NAME}@2.0.0",
    "file": f"/s/{NAME}@2.0.0/files/code/main.py",
    "versions": f"/s/{NAME}@2.0.0/versions",
    "diff": f"/s/{NAME}@2.0.0/diff/1.0.0",
    "review": f"/review/{NAME}@2.0.0",
    "runs": "/runs",
    "run": "/runs/{run}",
    "part, sorted": "/runs/{run}/parts/rows?sort=-amount",
    "insight": "/insight",
    "reach": "/insight/reach",
}
"""The addresses of the pages. `{run}` is a run with a table of 5,000 rows."""
BUDGETS = {
    "catalogue": (20, 60, 8_000),
    "skill": (20, 50, 12_000),
    "run": (40, 120, 16_000),
    "part, sorted": (80, 250, None),
    "insight": (60, 200, 12_000),
    "reach": (60, 200, 12_000),
}
"""The most milliseconds of the median and of the 95th percentile, and the most compressed bytes of a page."""
_SHIFTS = """
() => new Promise(done => {
  const seen = {lcp: 0, cls: 0, long: 0};
  new PerformanceObserver(list => list.getEntries().forEach(e => { seen.lcp = e.startTime; }))
    .observe({type: 'largest-contentful-paint', buffered: true});
  new PerformanceObserver(list => list.getEntries().forEach(e => { seen.cls += e.value; }))
    .observe({type: 'layout-shift', buffered: true});
  new PerformanceObserver(list => list.getEntries().forEach(e => { seen.long = Math.max(seen.long, e.duration); }))
    .observe({type: 'longtask', buffered: true});
  setTimeout(() => done(seen), 500);
})
"""


def measure(report: Report, folder: Path, small: bool) -> None:
    size = 10_000 if small else 100_000
    report.heading("Web pages")
    report.text(
        f"{size:,} skills, {CALLS} requests for each page over one connection, the pages in turns, times in "
        "milliseconds from request to the last byte. `processor` is the processor time of the server for one request "
        "(median), which depends less on other work of the machine. `ratio` compares the median with `GET /healthz` of "
        "the same turns. `first` is the first request of the page. The index of words has the bundled skills only. "
        "Bytes are compressed. `budget` has the most p50, p95 and bytes of a page, with the broken ones marked."
    )
    rows: list[list[object]] = []
    seen: list[list[object]] = []
    with running_postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE web_pages")
        for name, database in (("SQLite", ""), ("Postgres", url.replace("/postgres?", "/web_pages?"))):
            home = folder / f"web-{name}"
            home.mkdir(parents=True)
            opened = Database(database or f"sqlite:///{home / 'skillery.db'}")
            migrate.upgrade(opened)
            fill(opened, size)
            opened.close()
            if database:
                _move_sequences(url.replace("/postgres?", "/web_pages?"))
            server = Server(home, env={"SKILLERY_DATABASE": database})
            try:
                pages = _pages(server)
                rows += _times(server, name, pages)
                seen += [[name, *row] for row in asyncio.run(_in_browser(server.url, pages))]
            finally:
                server.stop()
    report.table(["database", "page", "p50 ms", "p95 ms", "ratio", "processor ms", "first ms", "bytes", "budget"], rows)
    report.text(
        "Measured by Chromium. First visits have the style sheet and the script. `healthz` is a text without style and "
        "script: its longest task belongs to the machine."
    )
    sizes = ["requests", "first visit, bytes", "later, bytes"]
    report.table(["database", "page", "LCP ms", "CLS", "longest task ms", *sizes], seen)


def _move_sequences(url: str) -> None:
    """Let Postgres count on after the rows that were written with ids."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("skills", "skill_versions"):
            last = f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))"
            connection.execute(last.encode())


def _pages(server: Server) -> dict[str, str]:
    """Publish two versions and run the second. Return the addresses of all pages."""
    for version in ("1.0.0", "2.0.0"):
        code = "".join(f"def f{n}(args):\n    return {n} + {version[0]}\n" for n in range(150))
        server.rpc(
            "create_skill",
            manifest={
                "name": NAME,
                "version": version,
                "kind": "action",
                "description": "Two versions to compare.",
                "runtime": {"language": "python", "entrypoint": "code/main.py"},
            },
            skill_md="# Pages\n\n" + f"A paragraph of version {version} about pages.\n\n" * 200,
            files=[{"path": "code/main.py", "content": f"{code}def main(args):\n    return args\n"}],
        )
    rows = [{"id": number, "name": f"row {number}", "amount": number * 7919 % 1000 / 10} for number in range(5000)]
    run = server.rpc("execute_skill", name=NAME, args={"rows": rows, "total": len(rows)})
    return {page: path.format(run=run["run_id"]) for page, path in PAGES.items()}


def _judged(page: str, *figures: float) -> str:
    """Return the budget of a page, with a mark at each figure over it. "" for a page without a budget."""
    pairs = zip(BUDGETS.get(page, ()), figures, strict=False)
    return " / ".join(f"{most:,}{' broken' if figure > most else ''}" for most, figure in pairs if most)


def _times(server: Server, name: str, pages: dict[str, str]) -> list[list[object]]:
    first: dict[str, float] = {}
    took: dict[str, list[float]] = {page: [] for page in pages}
    used: dict[str, list[float]] = {page: [] for page in pages}
    sizes: dict[str, int] = {}
    with httpx.Client(base_url=server.url, headers={"accept": "text/html"}, timeout=60) as client:
        for turn in range(CALLS + 5):
            for page, path in pages.items():
                begun, used_before = time.perf_counter(), _processor_ms(server.process.pid)
                answer = client.get(path)
                milliseconds = (time.perf_counter() - begun) * 1000
                assert answer.status_code == 200, (path, answer.status_code)
                first.setdefault(page, milliseconds)
                sizes[page] = len(gzip.compress(answer.content, 4))
                if turn >= 5:
                    took[page].append(milliseconds)
                    used[page].append(_processor_ms(server.process.pid) - used_before)
    base = median(took["healthz"])
    return [
        [
            name,
            page,
            format_ms(median(took[page])),
            format_ms(percentile(took[page], 95)),
            f"{median(took[page]) / base:.1f}",
            format_ms(median(used[page])),
            format_ms(first[page]),
            sizes[page],
            _judged(page, median(took[page]), percentile(took[page], 95), sizes[page]),
        ]
        for page in pages
    ]


def _processor_ms(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    stats = [task / "schedstat" for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(stat.read_text().split()[0]) for stat in stats if stat.exists()) / 1e6


async def _in_browser(url: str, pages: dict[str, str]) -> list[list[object]]:
    from playwright.async_api import async_playwright

    rows: list[list[object]] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM)
        for page_name, path in pages.items():
            context = await browser.new_context(base_url=url)
            sizes: list[int] = []
            page = await context.new_page()

            async def add(request: object, sizes: list[int] = sizes) -> None:
                found = await request.sizes()  # type: ignore[attr-defined]
                sizes.append(found["responseBodySize"])

            page.on("requestfinished", add)
            await page.goto(path)
            seen = await page.evaluate(_SHIFTS)
            first, count = sum(sizes), len(sizes)
            sizes.clear()
            await page.goto(path)
            await page.wait_for_timeout(300)
            lcp, shift, longest = round(seen["lcp"]), f"{seen['cls']:.3f}", round(seen["long"])
            rows.append([page_name, lcp, shift, longest, count, first, sum(sizes)])
            await context.close()
        await browser.close()
    return rows
