// Check the syntax of JavaScript files, and the exports of handlers. Report each fault: {file, line, message}.
//
// The answer is about foreign code, which may have changed anything in this process: the server trusts none of it.

import { spawnSync } from "node:child_process";
import fs from "node:fs";
import { pathToFileURL } from "node:url";

const FORM = "write: export default async (args) => …";

export async function main({ root, files, handlers }) {
  if (!fs.existsSync(root)) return null; // a sandbox that mounts skills in another folder
  const faults = files.map((file) => syntax(root, file, handlers.includes(file))).filter(Boolean);
  const broken = new Set(faults.map((fault) => fault.file));
  for (const file of handlers.filter((one) => !broken.has(one))) {
    const fault = await exported(root, file);
    if (fault) faults.push(fault);
  }
  return faults;
}

function syntax(root, file, isHandler) {
  const source = fs.readFileSync(root + file, "utf8");
  const isModule = isHandler || file.endsWith(".mjs") || /^\s*(?:import|export)\b/m.test(source);
  const options = isModule ? ["--input-type=module", "-"] : ["-"];
  const checked = spawnSync(process.execPath, ["--check", ...options], { input: source, encoding: "utf8" });
  if (checked.status === 0) return null;
  const line = Number(/^\[stdin\]:(\d+)/m.exec(checked.stderr)?.[1] ?? 1);
  const said = /^\w*Error: .*$/m.exec(checked.stderr)?.[0] ?? "Node.js cannot check the file";
  const text = source.split("\n")[line - 1]?.trim().slice(0, 60);
  return { file, line, message: text ? `${said} at '${text}'` : said };
}

async function exported(root, file) {
  try {
    const module = await import(pathToFileURL(root + file).href);
    if (typeof module.default === "function") return null;
    return { file, line: 1, message: `the handler has no default export that is a function; ${FORM}` };
  } catch (error) {
    return described(root, file, error);
  }
}

function described(root, file, error) {
  const absent = /^Cannot find (?:package|module) '([^']+)'/.exec(String(error?.message));
  if (error?.code === "ERR_MODULE_NOT_FOUND" && absent) {
    const name = absent[1].startsWith(root) ? absent[1].slice(root.length) : absent[1];
    const lines = fs.readFileSync(root + file, "utf8").split("\n");
    const line = lines.findIndex((one) => one.includes(name.split("/").pop())) + 1 || 1;
    const remedy = "bundle it into the handler: npx esbuild main.js --bundle --platform=node --format=esm --outfile=main.mjs";
    const how = absent[1].startsWith("/") ? "the bundle has no such file" : remedy;
    return { file, line, message: `imports '${name}', which runs do not have: ${how}` };
  }
  const stack = String(error?.stack ?? "").replaceAll("file://", "");
  const at = stack.indexOf(root);
  const place = at < 0 ? null : /^([^:\n)]+):(\d+)/.exec(stack.slice(at + root.length));
  const where = place ? { file: place[1], line: Number(place[2]) } : { file, line: 1 };
  return { ...where, message: `cannot be imported: ${error?.constructor?.name ?? "Error"}: ${error?.message ?? error}` };
}
