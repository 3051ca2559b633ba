// Node.js loads this file before every program of a run. It finds the files that TypeScript names without their ending,
// and repairs functions of `os` that fail in a sandbox.
"use strict";

const Module = require("node:module");
const os = require("node:os");

const OF_TYPES = /\.[cm]?ts$/;
const RELATIVE = /^\.{1,2}(?:\/|$)/;

// Return the files that the compiler of TypeScript would try for a relative import.
function candidates(specifier) {
  if (/\.[cm]?js$/.test(specifier)) return [specifier.replace(/js$/, "ts")];
  return [".ts", ".js", "/index.ts", "/index.js"].map((ending) => specifier.replace(/\/$/, "") + ending);
}

function resolve(specifier, context, next) {
  try {
    return next(specifier, context);
  } catch (error) {
    if (!RELATIVE.test(specifier) || !OF_TYPES.test(context.parentURL ?? "")) throw error;
    for (const candidate of candidates(specifier)) {
      try {
        return next(candidate, context);
      } catch {} // the next candidate may exist
    }
    throw error;
  }
}

function interfaces() {
  const loopback = { address: "127.0.0.1", netmask: "255.0.0.0", family: "IPv4", mac: "00:00:00:00:00:00" };
  return { lo: [{ ...loopback, internal: true, cidr: "127.0.0.1/8" }] };
}

function processors() {
  const times = { user: 0, nice: 0, sys: 0, idle: 0, irq: 0 };
  return Array.from({ length: os.availableParallelism?.() ?? 1 }, () => ({ model: "unknown", speed: 0, times: { ...times } }));
}

const { cpus, networkInterfaces } = os;
os.cpus = () => {
  const known = cpus();
  return known.length ? known : processors();
};
os.networkInterfaces = () => {
  try {
    return networkInterfaces();
  } catch {
    return interfaces();
  }
};
Module.syncBuiltinESMExports();
Module.registerHooks?.({ resolve }); // since Node.js 22.15
