// Calls over faulty connections, and calls to busy servers.
import assert from "node:assert/strict";
import { test } from "node:test";

import * as skillery from "../src/index.ts";
import { URL_OF_SERVER, lineTo, scripted, unused } from "./support.js";

const { Skillery } = skillery;
const client = new Skillery();
const COUNTED = "from runtime import blobs\ndef main(args):\n    return blobs.write_text('once')\n";
const busy = (more) => ({ body: { jsonrpc: "2.0", id: 1, error: { code: -32006, message: "busy", data: more } } });
const answered = (result) => ({ body: { jsonrpc: "2.0", id: 1, result } });

test("a run whose answer is lost is executed once", async () => {
  const line = await lineTo(URL_OF_SERVER, ["lost", "lost"]);
  const run = await new Skillery(line.url).runCode({ language: "python", code: COUNTED });
  const { runs } = await client.listRuns({ limit: 1 });

  assert.equal(line.connections, 3);
  assert.equal(runs[0].run_id, run.run_id);
  assert.equal(run.output_blobs.length, 1);
});

test("a run that outlasts its connection is waited for, and executed once", async () => {
  const asked = [];
  const fetch = async (url, init) => {
    asked.push(init.headers.get("idempotency-key"));
    if (asked.length > 1) return globalThis.fetch(url, init);
    const controller = new AbortController();
    const lost = globalThis.fetch(url, { ...init, signal: controller.signal });
    while (!(await client.listRuns({ limit: 1, status: "started" })).runs.length);
    controller.abort();
    return lost;
  };
  const code = "import time\ndef main(args):\n    time.sleep(1.5)\n    return 'slept'\n";
  const run = await new Skillery(URL_OF_SERVER, { fetch }).runCode({ language: "python", code });

  assert.equal(run.output, "slept");
  assert.equal(new Set(asked).size, 1);
  assert.equal((await client.listRuns({ limit: 1 })).runs[0].run_id, run.run_id);
});

test("a call that changes something without a key is sent once", async () => {
  const { blob_id } = await client.createBlob({ content: "x", kind: "text/plain" });
  const line = await lineTo(URL_OF_SERVER, ["lost", "lost"]);
  const lost = new Skillery(line.url);

  await assert.rejects(lost.deleteBlob({ blob_id }), (error) => error.sent === true);
  assert.equal(line.connections, 1);
  await assert.rejects(new Skillery(line.url, { attempts: 1 }).createBlob({ content: "x", kind: "text/plain" }));
  assert.equal(line.connections, 2);
});

test("a server that does not listen has not received the call", async () => {
  const closed = await unused();
  let attempts = 0;
  const fetch = (url, init) => globalThis.fetch((attempts += 1) < 2 ? closed : url, init);
  const { blob_id } = await client.createBlob({ content: "x", kind: "text/plain" });
  assert.equal((await new Skillery(URL_OF_SERVER, { fetch }).deleteBlob({ blob_id })).blob_id, blob_id);

  const away = new Skillery(closed, { attempts: 1 });
  await assert.rejects(away.listSkills(), (error) => error instanceof skillery.ConnectionFailed && !error.sent);
});

test("busy servers and proxies are asked again", async () => {
  const gateway = { status: 502, body: "<html>bad gateway" };
  const waits = { retry_after_ms: 1 };
  const underWay = Array.from({ length: 9 }, () => busy({ type: "call_under_way", ...waits }));

  assert.equal(await new Skillery(await scripted(busy(waits), answered(1))).deleteBlob({ blob_id: "b" }), 1);
  assert.equal(await new Skillery(await scripted(gateway, answered(2))).listSkills(), 2);
  assert.equal(await new Skillery(await scripted(...underWay, answered(3))).createBlob({}), 3);
  await assert.rejects(new Skillery(await scripted(gateway)).deleteBlob({ blob_id: "b" }), skillery.StrangeAnswer);
  const later = await scripted(busy({ retry_after_ms: 60_001 }));
  await assert.rejects(new Skillery(later).listSkills(), (error) => error.retryAfterMs === 60_001);
  const never = new Skillery(await scripted(...Array.from({ length: 5 }, () => busy(waits))));
  await assert.rejects(never.listSkills(), skillery.Busy);
});
