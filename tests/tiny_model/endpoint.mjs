// The chat completions of OpenAI with a real, tiny model. One thread answers one request at a time.
//
// The model is too small to choose a tool or to write JSON. So a grammar makes it read SKILL.md first, and write grades.
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [folder, modelPath] = process.argv.slice(2);
const { getLlama, LlamaChatSession } = await import(pathToFileURL(`${folder}/node_modules/node-llama-cpp/dist/index.js`));
const llama = await getLlama({ gpu: false, build: "never", maxThreads: 1, logLevel: "error" });
const model = await llama.loadModel({ modelPath });
const context = await model.createContext({ contextSize: 2048, threads: 1 });
const sequence = context.getSequence();
const CHARACTERS = 3000;
let last = Promise.resolve();

async function text(prompt, schema) {
  await sequence.clearHistory();
  const session = new LlamaChatSession({ contextSequence: sequence });
  const grammar = schema && (await llama.createGrammarForJsonSchema(schema));
  const options = { temperature: 0, maxTokens: schema ? 200 : 40, grammar };
  const written = await session.prompt(prompt.slice(0, CHARACTERS), options);
  session.dispose({ disposeSequence: false });
  return written;
}

async function message({ messages, tools = [] }) {
  const names = tools.map((tool) => tool.function.name);
  const task = messages.find((each) => each.role === "user").content;
  if (names.includes("read_skill_file") && !messages.some((each) => each.role === "tool")) {
    const schema = { type: "object", properties: { path: { const: "SKILL.md" } } };
    const call = { name: "read_skill_file", arguments: await text("Name the file SKILL.md as JSON.", schema) };
    return { role: "assistant", content: null, tool_calls: [{ id: "call_1", type: "function", function: call }] };
  }
  if (names.length) return { role: "assistant", content: await text(task) };
  const { expectations, answer } = JSON.parse(task.slice(0, task.lastIndexOf("}") + 1));
  const grade = {
    type: "object",
    properties: { passed: { type: "boolean" }, evidence: { type: "string", maxLength: 40 } },
  };
  const grades = { type: "array", items: grade, minItems: expectations.length, maxItems: expectations.length };
  const question = `Does this text meet "${expectations.join('", "')}"? The text: ${answer}`;
  return { role: "assistant", content: await text(question, { type: "object", properties: { grades } }) };
}

function tokens(value) {
  return model.tokenize(JSON.stringify(value)).length;
}

const server = createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const asked = JSON.parse(Buffer.concat(pieces).toString());
  last = last.then(async () => {
    let status = 200;
    let body;
    try {
      const written = await message(asked);
      const usage = { prompt_tokens: tokens(asked.messages), completion_tokens: tokens(written) };
      body = { choices: [{ message: written, finish_reason: written.tool_calls ? "tool_calls" : "stop" }], usage };
    } catch (error) {
      console.error(error);
      [status, body] = [400, { error: { message: String(error) } }];
    }
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(body));
  });
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/v1`));
