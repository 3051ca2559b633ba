// Methods, errors, cancellation, deadlines and limits.
import assert from "node:assert/strict";
import { test } from "node:test";

import { errorOf } from "../src/errors.ts";
import * as skillery from "../src/index.ts";
import { URL_OF_SERVER, scripted, unused } from "./support.js";

const { Skillery } = skillery;
const client = new Skillery();
const SLEEPS = "import time\ndef main(args):\n    time.sleep(600)\n";

test("methods return results, also by their names", async () => {
  const { skill } = await client.describeSkill({ name: "text.csv.profile" });
  const { content } = await client.call("load_skills_protocol_guide");
  const run = await client.runCode({ language: "python", code: "def main(args):\n    return args", args: { n: 1 } });

  assert.equal(skill.name, "text.csv.profile");
  assert.match(content, /^---/);
  assert.deepEqual([run.status, run.output], ["completed", { n: 1 }]);
  assert.equal(await client.isReady(), true);
  assert.equal((await client.request("/openrpc.json")).status, 200);
  assert.equal(await new Skillery(await unused()).isReady(), false);
});

test("errors have the class of their code, and all details", async () => {
  const error = await client.describeSkill({ name: "text.csv.profil" }).catch((error) => error);

  assert.ok(error instanceof skillery.NotFound && error instanceof skillery.ClientError);
  assert.deepEqual([error.name, error.code, error.type], ["NotFound", -32003, "skill_not_found"]);
  assert.match(error.hint, /text\.csv\.profile/);
  assert.ok(error.message.endsWith(error.hint));
  assert.deepEqual(error.object, { code: -32003, message: error.object.message, data: error.data });
  await assert.rejects(client.call("drop_tables"), skillery.MethodNotFound);
  await assert.rejects(client.listSkills({ limit: 0 }), skillery.InvalidParams);
});

test("each code has a class", () => {
  for (const code of [-32700, -32600, -32601, -32602, -32603, -32001, -32002, -32003, -32004, -32005, -32006, -32007]) {
    assert.notEqual(errorOf({ code }).name, "AnsweredError", String(code));
  }
  assert.equal(errorOf({ code: -32099, message: "new" }).name, "AnsweredError");
  assert.deepEqual(errorOf({ code: -32007, data: { findings: [{ rule: "x" }] } }).findings, [{ rule: "x" }]);
});

test("addresses are checked", () => {
  assert.throws(() => new Skillery("ftp://example.com"), /ftp:\/\/example/);
  assert.equal(new Skillery("https://example.com/skills/rpc/").url, "https://example.com/skills");
});

test("tokens are sent, and invalid ones are an error", async () => {
  const { SKILLERY_TOKENS_URL: url, READER: token } = process.env;
  const reader = new Skillery(url, { token });

  assert.ok((await reader.listSkills({ limit: 1 })).skills);
  assert.ok((await reader.toolsFor("mcp")).length);
  await assert.rejects(reader.createBlob({ content: "x", kind: "text/plain" }), skillery.NotAllowed);
  await assert.rejects(reader.uploadBlob(new Blob(["x"])), skillery.NotAllowed);
  for (const other of [new Skillery(url), new Skillery(url, { token: "sky_unknown" })]) {
    await assert.rejects(other.listSkills(), skillery.NotAuthenticated);
    await assert.rejects(other.prompt(), skillery.NotAuthenticated);
    await assert.rejects(other.followRun("run_x").next(), skillery.NotAuthenticated);
    await assert.rejects(other.downloadBlob("blob:x"), skillery.NotAuthenticated);
  }
});

test("a function gives the token of each request", async () => {
  const sent = [];
  const fetch = (url, init) => {
    sent.push(init.headers.get("authorization"));
    return globalThis.fetch(url, init);
  };
  const tokens = ["one", "two"];
  const asking = new Skillery(URL_OF_SERVER, { token: async () => tokens.shift(), fetch });
  for (let calls = 0; calls < 3; calls += 1) await asking.listSkills({ limit: 1 });

  assert.deepEqual(sent, ["Bearer one", "Bearer two", null]);
});

test("a signal cancels a call, and a deadline ends it", async () => {
  const run = await client.runCode({ language: "python", code: SLEEPS, background: true });
  const wait = { run_id: run.run_id, wait_ms: 60_000 };
  const reason = new Error("the user has left");
  const controller = new AbortController();
  const fetch = (url, init) => {
    setImmediate(() => controller.abort(reason)); // the request is under way
    return globalThis.fetch(url, init);
  };
  const cancelled = new Skillery(URL_OF_SERVER, { fetch, attempts: 1 }).getRun(wait, { signal: controller.signal });

  await assert.rejects(cancelled, (error) => error === reason);
  await assert.rejects(client.getRun(wait, { signal: AbortSignal.abort(reason) }), (error) => error === reason);
  await assert.rejects(client.getRun(wait, { timeoutMs: 100 }), skillery.DeadlineExceeded);
  await assert.rejects(new Skillery(URL_OF_SERVER, { timeoutMs: 100 }).getRun(wait), /within 100 ms/);
  await client.cancelRun({ run_id: run.run_id });
  assert.equal((await client.waitRun(run.run_id)).status, "failed");
});

test("an answer that is too large or foreign is refused", async () => {
  const small = new Skillery(URL_OF_SERVER, { maxAnswerBytes: 1000 });
  await assert.rejects(small.listSkills({ detail: "summary" }), /more than 1000 bytes, the limit of maxAnswerBytes/);

  for (const answer of [{ body: "<html>" }, { body: "[]" }, { body: {} }, { status: 404, body: { result: 1 } }]) {
    const other = new Skillery(await scripted(answer));
    await assert.rejects(other.listSkills(), (error) => {
      return error instanceof skillery.StrangeAnswer && error.status === (answer.status ?? 200);
    });
  }
  const elsewhere = { status: 307, headers: { location: URL_OF_SERVER } };
  await assert.rejects(new Skillery(await scripted(elsewhere)).listSkills(), skillery.StrangeAnswer);
});
