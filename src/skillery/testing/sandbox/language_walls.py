"""Isolation of programs in other languages than Python, checked from inside."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cellblock.host.plan import ENVIRONMENT
from skillery.backends import HandlerCall, Language, Limits, ScriptCall
from skillery.testing.sandbox.languages import INPUT, javascript, shell, with_node
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, value_of

STATUS = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status"
OPEN = "for n in {0..255}; do [ -e /proc/$$/fd/$n ] && printf '%s ' $n; done; true"


class LanguageIsolation(SandboxCases):
    """Programs in other languages have the same isolation."""

    async def test_a_shell_has_no_capability_and_gains_none(self, trial: Trial) -> None:
        lines = value_of(await shell(trial, STATUS)).splitlines()
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert {int(status.pop(name), 16) for name in list(status) if name.startswith("Cap")} == {0}
        assert status == {"NoNewPrivs": "1", "Seccomp": "2"}

    async def test_a_shell_holds_its_streams_and_no_channel(self, trial: Trial) -> None:
        assert value_of(await shell(trial, OPEN)) == "0 1 2 "

    @with_node
    async def test_node_holds_no_socket(self, trial: Trial) -> None:
        code = """
        import fs from "node:fs";
        const link = (n) => { try { return fs.readlinkSync(`/proc/self/fd/${n}`) } catch { return "gone" } };
        export const main = () => fs.readdirSync("/proc/self/fd").map(link).filter((to) => to.startsWith("socket"));
        """
        assert value_of(await javascript(trial, code)) == []

    async def test_the_process_that_speaks_for_the_run_cannot_be_read_or_written(self, trial: Trial) -> None:
        code = """
        opened=""
        for name in mem environ maps fd/3 root/usr; do
            if [ -e /proc/$PPID/$name ] || { : < /proc/$PPID/$name; } 2>/dev/null; then opened="$opened $name"; fi
        done
        if { : >> /proc/$PPID/mem; } 2>/dev/null; then opened="$opened writing"; fi
        echo "opened:$opened"
        """
        assert value_of(await shell(trial, code)) == "opened:"

    @with_node
    async def test_node_sees_no_more_of_the_host(self, trial: Trial, tmp_path: Path) -> None:
        secret = tmp_path / "registry.db"
        secret.write_text("secret")
        code = """
        import fs from "node:fs";
        const PLACES = ["/etc/shadow", "/sys", "/home", "/var/log", "/proc/sys", "/dev/kvm"];
        const done = (act) => { try { act(); return true } catch { return false } };
        const written = (folder) => done(() => fs.writeFileSync(`${folder}/.x`, ""));
        export const main = (args) => [
          [...PLACES, args.secret].filter((path) => fs.existsSync(path)),
          ["/", "/usr", "/skills", "/run"].filter(written),
          fs.readdirSync("/workspace").concat(fs.readdirSync("/tmp")),
        ];
        """
        assert value_of(await javascript(trial, code, {"secret": str(secret)})) == [[], [], []]

    @with_node
    async def test_no_limit_can_be_raised_from_any_language(self, trial: Trial) -> None:
        compare = '[ "$(ulimit -Sa)" = "$(ulimit -Ha)" ] && echo fixed'
        python = """
        import resource
        NAMES = [name for name in dir(resource) if name.startswith('RLIMIT_')]
        def main(args):
            return [name for name in NAMES if len(set(resource.getrlimit(getattr(resource, name)))) > 1]
        """
        node = f"""
        import {{ execFileSync }} from "node:child_process";
        export const main = () => execFileSync("bash", ["-c", {compare!r}]).toString();
        """
        handler = trial.skill("acme.tool", {"t.py": python.replace("main", "handler")}, entrypoint=None)
        assert await trial.value(python) == []
        assert value_of(await trial.call(HandlerCall("acme.tool", "t.py"), skills=(handler,))) == []
        assert value_of(await shell(trial, compare)) == "fixed"
        assert value_of(await javascript(trial, node)) == "fixed\n"

    async def test_a_shell_starts_in_empty_folders(self, trial: Trial) -> None:
        code = "ls -A /workspace /tmp /dev/shm | grep -v ':$' | tr -d '\\n'; env | cut -d= -f1 | sort | tr '\\n' ' '"
        names = value_of(await shell(trial, code)).split()
        assert {"HOME", "LANG", "PATH"} <= set(names) <= {*ENVIRONMENT, "NODE_OPTIONS", "PWD", "SHLVL", "_"}

    @with_node
    async def test_javascript_reads_skills_blobs_and_its_own_files(self, trial: Trial) -> None:
        skill = trial.skill("tools.js", {"lib/twice.js": "export const twice = (n) => 2 * n;"}, entrypoint=None)
        code = """
        import fs from "node:fs";
        import { twice } from "/skills/tools.js/lib/twice.js";
        export async function main(args) {
          fs.writeFileSync("own.mjs", "export const own = 'mine'");
          const { own } = await import("./own.mjs");
          fs.writeFileSync("data.json", "[1]");
          const { default: data } = await import("./data.json", { with: { type: "json" } });
          return [twice(args.n), fs.readFileSync(`/blobs/${args.id}`, "utf8"), own, data];
        }
        """
        blobs = (trial.blob(INPUT, b"content"),)
        outcome = await javascript(trial, code, {"n": 4, "id": INPUT}, skills=(skill,), blobs=blobs)
        assert value_of(outcome) == [8, "content", "mine", [1]]

    @with_node
    async def test_node_reaches_no_network(self, trial: Trial) -> None:
        code = """
        import net from "node:net";
        import dns from "node:dns/promises";
        import dgram from "node:dgram";
        const failed = (promise) => promise.then(() => false, () => true);
        const connect = (port, host) => new Promise((resolve, reject) =>
          net.connect({ port, host }).on("connect", resolve).on("error", reject));
        const send = (port, host) => new Promise((resolve, reject) => {
          const s = dgram.createSocket("udp4").on("error", reject);
          s.send("x", port, host, (error) => error ? reject(error) : resolve());
        });
        export const main = (args) => Promise.all([
          failed(connect(args.port, "127.0.0.1")), failed(connect(80, "169.254.169.254")),
          failed(dns.lookup("example.com")), failed(fetch(`http://127.0.0.1:${args.port}`)),
          failed(send(53, "1.1.1.1")),
        ]);
        """
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert value_of(await javascript(trial, code, {"port": server.getsockname()[1]})) == [True] * 5

    @with_node
    @pytest.mark.parametrize(
        "growing",
        [
            "kept.push(new Array(1000).fill({}))",
            "kept.push(Buffer.alloc(1 << 20, 1))",
            "kept.push('x'.repeat(1000) + 1)",
        ],
    )
    async def test_the_memory_of_node_is_held(self, trial: Trial, growing: str) -> None:
        code = f"export function main() {{ const kept = []; for (;;) {growing} }}"
        outcome = await javascript(trial, code, limits=Limits(timeout_ms=300_000, memory_mb=128))
        assert failure_type(outcome) == "MemoryLimitExceeded"

    async def test_the_memory_of_a_shell_is_held(self, trial: Trial) -> None:
        code = 'kept=xxxxxxxxxxxxxxxx; while true; do kept="$kept$kept"; done'
        outcome = await shell(trial, code, limits=Limits(timeout_ms=300_000, memory_mb=96))
        assert failure_type(outcome) in {"MemoryLimitExceeded", "ProcessExited"}  # its own malloc may fail first

    @with_node
    async def test_the_processes_of_node_are_held(self, trial: Trial) -> None:
        code = """
        import { spawn } from "node:child_process";
        export async function main() {
          for (let count = 0; count < 200; count++) {
            const error = await new Promise((resolve) =>
              spawn("sleep", ["1000"]).on("spawn", () => resolve(null)).on("error", resolve));
            if (error) return [error.code, count < 40];
          }
        }
        """
        limits = Limits(timeout_ms=300_000, processes=40)
        assert value_of(await javascript(trial, code, limits=limits)) == ["EAGAIN", True]

    async def test_a_fork_bomb_of_a_shell_ends_with_its_run(self, trial: Trial) -> None:
        limits = Limits(timeout_ms=1500, processes=20)
        outcome = await shell(trial, "bomb() { bomb | bomb & }; bomb; sleep 1000", limits=limits)
        assert failure_type(outcome) in {"TimeoutError", "ProcessExited"}

    @with_node
    @pytest.mark.parametrize("language", ["bash", "javascript"])
    async def test_the_time_of_other_languages_ends(self, trial: Trial, language: Language) -> None:
        endless = {
            "bash": "trap '' TERM INT; while :; do :; done",
            "javascript": "export function main() { for (;;); }",
        }
        outcome = await trial.code(endless[language], language=language, limits=Limits(timeout_ms=600))
        assert failure_type(outcome) == "TimeoutError"

    async def test_all_processes_of_a_script_get_sigterm_at_its_time_limit(self, trial: Trial) -> None:
        """A shell waits for its children. A script that does not end with status 0 then is stopped at its limit."""
        child = "bash -c \"trap 'mkdir out; echo saved > out/f; exit' TERM; while :; do sleep 0.1; done\""
        for trap, failure in (("trap 'exit 0' TERM;", None), ("", "TimeoutError")):
            trial.host.paths.clear()
            skill = trial.skill("acme.script", {"s.sh": f"{trap} {child}; true"}, entrypoint=None)
            for timeout_ms in (5_000, 50_000, 250_000):  # on a loaded machine, the child needs time until it waits
                limits = Limits(timeout_ms=timeout_ms)
                outcome = await trial.call(ScriptCall("acme.script", "s.sh"), skills=(skill,), limits=limits)
                if failure_type(outcome) == failure and "f" in trial.host.paths:
                    break
            assert failure_type(outcome) == failure
            assert trial.host.blobs[trial.host.paths["f"]] == b"saved\n"

    async def test_whatever_a_shell_kills_the_next_run_is_clean(self, trial: Trial) -> None:
        await shell(trial, "echo x > /workspace/left; echo x > /tmp/left; (setsid sleep 1000 &); kill -9 -1")
        look = "for pid in /proc/[0-9]*; do cat $pid/comm; done; ls -A /workspace /tmp /dev/shm"
        seen = value_of(await shell(trial, look)).split()
        assert "left" not in seen
        assert "sleep" not in seen
