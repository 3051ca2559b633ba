// Calls one function of one module. The request is read from one descriptor, the answer is written to another:
// `{"value": …}` or `{"failure": {type, message, traceback}}`. All printed output is log only.

import fs from "node:fs";
import { isBuiltin } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";
import vm from "node:vm";

const OLDEST = [20, 19];
const OURSELVES = fileURLToPath(import.meta.url); // Node reports this file as the importer of the code's imports
const [input, output] = process.argv.slice(2).map(Number);
const { stringify } = JSON;
const exit = process.exit.bind(process);
const kept = []; // a collected module can no longer import
const unreadable = new WeakSet();
let answered = false;

class Told extends Error {
  constructor(type, message) {
    super(message);
    this.told = { type, message, traceback: "" };
  }
}

function answer(text) {
  if (answered) return;
  answered = true;
  let bytes = Buffer.from(text);
  while (bytes.length) bytes = bytes.subarray(fs.writeSync(output, bytes));
  fs.closeSync(output);
}

// Describes an error with the frames of user code, even if reading a property of the error throws.
function described(error) {
  if (error instanceof Told) return error.told;
  try {
    const isError = error instanceof Error;
    const type = isError ? String(error.constructor?.name || "Error") : "Error";
    const message = isError ? String(error.message).replaceAll(OURSELVES, "run_code.mjs") : `the code threw ${String(error)}`;
    const frames = isError ? String(error.stack).split("\n").filter(isOfTheUser) : [];
    const traceback = frames.length ? [`${type}: ${message}`, ...frames].join("\n").replaceAll("file://", "") : "";
    return { type, message, traceback };
  } catch {
    return { type: "Error", message: "(its message could not be read)", traceback: "" };
  }
}

function isOfTheUser(line) {
  return /^\s+at /.test(line) && !line.includes("node:") && !line.includes(import.meta.url);
}

function fail(error) {
  answer(stringify({ failure: described(error) }));
  if (!unreadable.has(error)) exit(0);
  // Node names the position of a parse error only for uncaught errors: throw it, so that the log contains the
  // position.
  process.removeAllListeners("uncaughtException");
  error.stack = `${error.name}: ${error.message}`;
  throw error;
}

function unread(error) {
  if (error instanceof SyntaxError) unreadable.add(error);
  throw error;
}

function check(version) {
  const [major, minor] = version.split(".").map(Number);
  if (major > OLDEST[0] || (major === OLDEST[0] && minor >= OLDEST[1])) return;
  const needed = OLDEST.join(".");
  throw new Told("SandboxError", `this host has Node.js ${version}; JavaScript needs Node.js ${needed} or later`);
}

// Resolves a specifier as if the code were a file in the working directory.
function resolve(specifier, url) {
  return /^\.{0,2}\//.test(specifier) && !isBuiltin(specifier) ? new URL(specifier, url).href : specifier;
}

async function linked(specifier, url, attributes, context) {
  const found = await import(resolve(specifier, url), { with: attributes });
  const names = Object.keys(found);
  const fill = function () {
    for (const name of names) this.setExport(name, found[name]);
  };
  return new vm.SyntheticModule(names, fill, { identifier: specifier, context });
}

function compiled(code, url) {
  try {
    return new vm.SourceTextModule(code, {
      identifier: "run_code.mjs",
      initializeImportMeta: (meta) => (meta.url = url),
      importModuleDynamically: (specifier, _, attributes) => import(resolve(specifier, url), { with: attributes }),
    });
  } catch (error) {
    return unread(error);
  }
}

async function fromCode({ code, entrypoint }) {
  const url = pathToFileURL("run_code.mjs").href;
  const module = compiled(code, url);
  kept.push(module);
  await module.link((specifier, { context }, { attributes }) => linked(specifier, url, attributes, context));
  await module.evaluate();
  const called = module.namespace[entrypoint];
  if (typeof called === "function") return called;
  const form = entrypoint === "default" ? "export default async (args) => …" : `export function ${entrypoint}(args) {…}`;
  throw new Told("AttributeError", `the module exports no function '${entrypoint}'; write: ${form}`);
}

async function fromFile({ file }) {
  const module = await import(pathToFileURL(file).href).catch(unread);
  if (typeof module.default === "function") return module.default;
  throw new Told("AttributeError", "the handler has no default export that is a function; write: export default async (args) => …");
}

function json(value) {
  let text;
  try {
    text = stringify(value === undefined ? null : value);
  } catch (error) {
    throw new Told("InvalidOutput", `the output is not JSON: ${described(error).message}`);
  }
  if (text === undefined) throw new Told("InvalidOutput", `the output is not JSON: it is a ${typeof value}`);
  return text;
}

function beOrdinary() {
  process.argv = [process.execPath];
  const [show] = process.listeners("warning");
  const ours = new Set(["ExperimentalWarning", "MODULE_TYPELESS_PACKAGE_JSON"]);
  process.removeAllListeners("warning");
  process.on("warning", (warning) => ours.has(warning.name) || ours.has(warning.code) || show(warning));
  process.on("uncaughtException", (error) => {
    if (process.listenerCount("uncaughtException") === 1) fail(error);
  });
  process.on("beforeExit", () => {
    const message = "there is nothing left to wait for, and what the function returned is still a pending promise";
    fail(new Told("ProcessExited", message));
  });
}

async function run() {
  check(process.versions.node);
  const request = JSON.parse(fs.readFileSync(input, "utf8"));
  fs.closeSync(input);
  beOrdinary();
  const called = await (request.file === undefined ? fromCode(request) : fromFile(request));
  answer(`{"value":${json(await called(request.args))}}`);
}

run().then(() => exit(0), fail);
