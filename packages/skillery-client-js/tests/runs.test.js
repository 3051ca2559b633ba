// Runs in the background: their events, their end, and their files.
import assert from "node:assert/strict";
import { test } from "node:test";

import * as skillery from "../src/index.ts";
import { URL_OF_SERVER, lineTo } from "./support.js";

const client = new skillery.Skillery();
const PRINTS = `
from runtime import progress
def main(args):
    progress(1, 2, "half")
    for number in range(3000):
        print(f"line {number}")
    return 42
`;
const PRINTED = Array.from({ length: 3000 }, (_, number) => `line ${number}\n`).join("");

async function textOf(events) {
  const seen = { text: "", names: new Set(), run: undefined, next: 0 };
  for await (const event of events) {
    seen.names.add(event.event);
    if (event.event === "log") [seen.text, seen.next] = [seen.text + event.text, event.next];
    if (event.event === "end") seen.run = event.run;
  }
  return seen;
}

test("the events of a run have its log and its end", async () => {
  const { run_id, status } = await client.runCode({ language: "python", code: PRINTS, background: true });
  const seen = await textOf(client.followRun(run_id));

  assert.ok(["queued", "started"].includes(status));
  assert.equal(seen.text, PRINTED);
  assert.ok(seen.names.has("status") && seen.names.has("end"));
  assert.deepEqual([seen.run.status, seen.run.output], ["completed", 42]);
  assert.equal((await client.waitRun(run_id)).output, 42);
  assert.equal((await textOf(client.followRun(run_id, { after: seen.next }))).text, "");
});

test("the end of a failed run is an event, not an error", async () => {
  const { run_id } = await client.runCode({ language: "python", code: "raise ValueError('x')\n", background: true });
  const { run } = await textOf(client.followRun(run_id));

  assert.equal(run.status, "failed");
  assert.match(run.error.message, /x/);
});

test("no text is lost or repeated if the connection breaks", async () => {
  const { run_id } = await client.runCode({ language: "python", code: PRINTS });
  const line = await lineTo(URL_OF_SERVER, ["lost", 900, 20_000]);
  const seen = await textOf(new skillery.Skillery(line.url).followRun(run_id));

  assert.equal(seen.text, PRINTED);
  assert.equal(line.connections, 4);
});

test("a run that does not exist is not found", async () => {
  await assert.rejects(client.followRun("run_none").next(), skillery.NotFound);
  await assert.rejects(client.waitRun("run_none"), skillery.NotFound);
});

test("a signal ends the wait for a run, and cancelRun the run", async () => {
  const code = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n";
  const { run_id } = await client.runCode({ language: "python", code, background: true });
  const reason = new Error("enough");
  const controller = new AbortController();
  const follow = async () => {
    for await (const event of client.followRun(run_id, { signal: controller.signal })) {
      if (event.event === "log") controller.abort(reason);
    }
  };

  await assert.rejects(follow(), (error) => error === reason);
  for await (const event of client.followRun(run_id)) if (event.event === "log") break;
  await client.cancelRun({ run_id });
  assert.equal((await client.waitRun(run_id)).status, "failed");
});

test("files of a run are uploaded and downloaded", async () => {
  const code = "import os\ndef main(args):\n    os.makedirs('out')\n    os.rename('in/a.txt', 'out/a.txt')\n";
  const files = { "in/a.txt": new TextEncoder().encode("hello") };
  const run = await client.runCode({ language: "python", code, files });
  const [file] = run.files;

  assert.equal(file.path, "a.txt");
  assert.equal(new TextDecoder().decode(await client.downloadBlob(file.blob_id)), "hello");
});
