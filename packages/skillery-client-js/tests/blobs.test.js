// Uploads and downloads.
import assert from "node:assert/strict";
import { test } from "node:test";

import * as skillery from "../src/index.ts";
import { URL_OF_SERVER, lineTo } from "./support.js";

const client = new skillery.Skillery();
const BYTES = Uint8Array.from({ length: 256 * 1024 }, (_, at) => at % 251);

async function* pieces() {
  for (let at = 0; at < BYTES.length; at += 50_000) yield BYTES.subarray(at, at + 50_000);
}

async function joined(stream) {
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

test("every kind of content is uploaded", async () => {
  const contents = [BYTES, BYTES.buffer, new Blob([BYTES]), new Blob([BYTES]).stream(), pieces()];
  for (const content of contents) {
    const blob = await client.uploadBlob(content);

    assert.equal(blob.size_bytes, BYTES.length);
    assert.deepEqual(await client.downloadBlob(blob.blob_id), BYTES);
  }
  await assert.rejects(client.uploadBlob("orders.csv"), /new Blob\(\[text\]\)/);
});

test("a blob keeps its media type and its lifetime", async () => {
  const content = new Blob(["a,b\n"], { type: "text/csv" });
  const typed = await client.openBlob((await client.uploadBlob(content)).blob_id);
  const named = await client.uploadBlob(content, { kind: "text/plain", ttl: 60 });

  assert.deepEqual([typed.kind, typed.sizeBytes], ["text/csv", 4]);
  assert.equal(new TextDecoder().decode(await joined(typed.stream)), "a,b\n");
  assert.equal((await client.openBlob(named.blob_id)).kind, "text/plain");
  assert.ok(Date.parse(named.expires_at) < Date.now() + 120_000);
});

test("parts are downloaded, also in pieces", async () => {
  const { blob_id } = await client.uploadBlob(BYTES);
  const empty = await client.uploadBlob(new Uint8Array());

  assert.deepEqual(await client.downloadBlob(blob_id, { start: 10, stop: 20 }), BYTES.slice(10, 20));
  assert.deepEqual(await client.downloadBlob(blob_id, { start: BYTES.length - 5 }), BYTES.slice(-5));
  const opened = await client.openBlob(blob_id, { start: 5 });
  assert.equal(opened.sizeBytes, BYTES.length - 5);
  await opened.stream.cancel();
  let size = 0;
  for await (const piece of client.streamBlob(blob_id)) size += piece.length;
  assert.equal(size, BYTES.length);
  assert.equal((await client.downloadBlob(empty.blob_id)).length, 0);
});

test("errors of downloads are those of the server", async () => {
  const { blob_id } = await client.uploadBlob(BYTES);

  await assert.rejects(client.openBlob("blob:none"), skillery.NotFound);
  await assert.rejects(client.downloadBlob("blob:none"), skillery.NotFound);
  await assert.rejects(client.downloadBlob(blob_id, { start: BYTES.length }), skillery.InvalidRequest);
  const small = new skillery.Skillery(URL_OF_SERVER, { maxAnswerBytes: 1000 });
  await assert.rejects(small.downloadBlob(blob_id), /maxAnswerBytes/);
  await assert.rejects(client.downloadBlob(blob_id, { signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("an interrupted download continues where it stopped", async () => {
  const { blob_id } = await client.uploadBlob(BYTES);
  const line = await lineTo(URL_OF_SERVER, ["lost", ...Array.from({ length: 5 }, () => 30_000)]);

  assert.deepEqual(await new skillery.Skillery(line.url).downloadBlob(blob_id), BYTES);
  assert.equal(line.connections, 7); // received bytes reset the number of failed attempts
});

test("bytes whose answer is lost are one blob, and streams are sent once", async () => {
  const line = await lineTo(URL_OF_SERVER, ["lost", "lost"]);
  const lost = new skillery.Skillery(line.url);
  const idempotencyKey = crypto.randomUUID();
  const blob = await lost.uploadBlob(BYTES, { idempotencyKey });

  assert.equal(line.connections, 3);
  assert.deepEqual(await client.uploadBlob(BYTES, { idempotencyKey }), blob);
  const broken = await lineTo(URL_OF_SERVER, ["lost"]);
  await assert.rejects(new skillery.Skillery(broken.url).uploadBlob(pieces()), skillery.ConnectionFailed);
  assert.equal(broken.connections, 1);
});
