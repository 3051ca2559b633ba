// Tool calls in the formats of the SDKs, and invalid calls of models.
import assert from "node:assert/strict";
import { test } from "node:test";

import * as skillery from "../src/index.ts";
import { URL_OF_SERVER, unused } from "./support.js";

const client = new skillery.Skillery();
const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const DRAWS = `
import base64, os
def main(args):
    os.mkdir("out")
    open("out/plot.png", "wb").write(base64.b64decode(args["png"]))
    open("out/wrong.png", "w").write("no picture")
`;
const openai = (name, given = "{}") => ({ id: "call_1", type: "function", function: { name, arguments: given } });
const responses = (name, given = "{}") => ({ type: "function_call", call_id: "call_1", name, arguments: given });
const anthropic = (name, input = {}) => ({ type: "tool_use", id: "toolu_1", name, input });
const errorIn = (message) => JSON.parse(message.content).error;

test("each format gets its tools and the prompt names them", async () => {
  for (const form of ["openai", "openai-responses", "anthropic", "mcp", "jsonschema"]) {
    const tools = await client.toolsFor(form);

    assert.deepEqual([tools.length, (tools.at(-1).function ?? tools.at(-1)).name], [9, "search_skills"]);
  }
  assert.match(await client.prompt(), /^You are connected to a Skills Runtime[^]*`search_skills`/);
});

test("each format gets its message", async () => {
  const given = '{"limit": 1}';
  const tool = await client.handle(openai("list_skills", given));
  const item = await client.handle(responses("list_skills", given));
  const block = await client.handle(anthropic("list_skills", { limit: 1 }));
  const result = await client.handle({ name: "list_skills", arguments: { limit: 1 } });

  assert.deepEqual({ ...tool, content: "" }, { role: "tool", tool_call_id: "call_1", content: "" });
  assert.deepEqual({ ...item, output: "" }, { type: "function_call_output", call_id: "call_1", output: "" });
  const empty = { type: "tool_result", tool_use_id: "toolu_1", content: "", is_error: false };
  assert.deepEqual({ ...block, content: "" }, empty);
  assert.equal(result.isError, false);
  for (const text of [tool.content, item.output, block.content, result.content[0].text]) {
    assert.deepEqual(JSON.parse(text), result.structuredContent);
  }
});

test("models that accept images see the pictures of a run", async () => {
  const input = { language: "python", code: DRAWS, entrypoint: "main", args: { png: PNG } };
  const block = await client.handle(anthropic("run_code", input));
  const result = await client.handle({ name: "run_code", arguments: input });
  const plain = await client.handle(anthropic("run_code", input), { images: false });

  const source = { type: "base64", media_type: "image/png", data: PNG };
  assert.deepEqual(block.content.slice(1), [{ type: "image", source }]);
  assert.equal(JSON.parse(block.content[0].text).status, "completed");
  assert.deepEqual(result.content.slice(1), [{ type: "image", data: PNG, mimeType: "image/png" }]);
  assert.equal(JSON.parse(plain.content).status, "completed");
});

test("errors that a model can correct are part of the message", async () => {
  for (const given of ["{", "[]", "null", "1", '"x"', "{'limit': 1}", '{"limit": NaN}', "[".repeat(100_000)]) {
    const error = errorIn(await client.handle(openai("list_skills", given)));

    assert.deepEqual([error.code, error.data.type], [-32602, "invalid_arguments"], given.slice(0, 20));
  }
  for (const given of ["", null, undefined]) {
    assert.ok(JSON.parse((await client.handle(openai("load_skills_protocol_guide", given))).content).content);
  }
  const unknown = errorIn(await client.handle(openai("delete_blob", '{"blob_id": "b"}')));
  assert.equal(unknown.data.type, "tool_not_found");
  assert.match(unknown.data.hint, /list_skills, describe_skill/);
  const refused = await client.handle(anthropic("describe_skill", { name: "text.csv.profil" }));
  assert.equal(refused.is_error, true);
  assert.match(errorIn(refused).data.hint, /text\.csv\.profile/);
  const code = { language: "python", code: "def main(args):\n    raise ValueError('x')\n", entrypoint: "main" };
  assert.equal((await client.handle(anthropic("run_code", code))).is_error, true);
});

test("paths of a model are never uploaded", async () => {
  const given = { language: "python", code: "def main(args):\n    pass\n", files: { "a.txt": "text" } };

  assert.equal(errorIn(await client.handle(anthropic("run_code", given))).code, -32602);
});

test("errors of the program and of the connection are thrown", async () => {
  for (const call of [{}, "list_skills", null, { type: "text", text: "hello" }, { type: "tool_result" }]) {
    await assert.rejects(client.handle(call), /is not a tool call/);
  }
  const away = new skillery.Skillery(await unused(), { attempts: 1 });
  await assert.rejects(away.handle(openai("list_skills")), skillery.ConnectionFailed);
  const refusing = async () => new Response('{"error": {"code": -32001, "message": "no"}}', { status: 401 });
  const stranger = new skillery.Skillery(URL_OF_SERVER, { fetch: refusing });
  await assert.rejects(stranger.handle(openai("list_skills")), skillery.NotAuthenticated);
});
