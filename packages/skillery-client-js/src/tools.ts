// Tool calls of models in the formats of SDKs, and the messages that answer them.
import type { ErrorObject } from "./errors.ts";
import { isObject } from "./errors.ts";

type Schema = { type: "object"; [key: string]: unknown };

/** The schema of a tool, by the name of its format. */
export interface ToolForms {
  openai: { type: "function"; function: { name: string; description: string; parameters: Schema } };
  "openai-responses": { type: "function"; name: string; description: string; parameters: Schema; strict: boolean };
  anthropic: { name: string; description: string; input_schema: Schema };
  mcp: { name: string; description: string; inputSchema: Schema };
  jsonschema: { name: string; description: string; parameters: Schema };
}

export type PictureKind = "image/png" | "image/jpeg";

/** An entry of `message.tool_calls` of OpenAI's chat completions, and the message that answers it. */
export type OpenAICall = { id: string; type: "function"; function: { name: string; arguments: string } };
export type OpenAIMessage = { role: "tool"; tool_call_id: string; content: string };

/** An item `function_call` of OpenAI's responses, and the item that answers it. */
export type ResponsesCall = { type: "function_call"; call_id: string; name: string; arguments: string };
export type ResponsesItem = { type: "function_call_output"; call_id: string; output: string };

/** A block `tool_use` of Anthropic's messages, and the block that answers it. */
export type AnthropicCall = { type: "tool_use"; id: string; name: string; input: unknown };
export type AnthropicResult = {
  type: "tool_result";
  tool_use_id: string;
  is_error: boolean;
  content:
    | string
    | (
        | { type: "text"; text: string }
        | { type: "image"; source: { type: "base64"; media_type: PictureKind; data: string } }
      )[];
};

/** The params of `tools/call` of MCP, and its result. */
export type McpCall = { type?: undefined; name: string; arguments?: Record<string, unknown> };
export type McpResult = {
  content: ({ type: "text"; text: string } | { type: "image"; data: string; mimeType: PictureKind })[];
  isError: boolean;
  structuredContent?: Record<string, unknown>;
};

type Message = OpenAIMessage | ResponsesItem | AnthropicResult | McpResult;
type Dialect = "openai" | "openai-responses" | "anthropic" | "mcp";

/** A faulty tool call, which the model may correct. `object` is the error object for the model. */
export class ModelMistake extends Error {
  readonly object: ErrorObject;

  constructor(message: string, type: string, hint: string) {
    super(message);
    this.object = { code: -32602, message, data: { type, hint } };
  }
}

/** A tool call of a model. `dialect` is the format in which the call was written. */
export class ToolCall {
  readonly dialect: Dialect;
  readonly id: string;
  readonly name: string;
  readonly #arguments: unknown;

  constructor(dialect: Dialect, id: unknown, name: unknown, given: unknown) {
    this.dialect = dialect;
    this.id = String(id ?? "");
    this.name = String(name ?? "");
    this.#arguments = given;
  }

  /** Whether a message of this format can contain images. */
  get showsImages(): boolean {
    return this.dialect === "anthropic" || this.dialect === "mcp";
  }

  /** Return the arguments as an object. Throw ModelMistake if they are not a JSON object. */
  params(): Record<string, unknown> {
    const given = this.#arguments ?? "";
    try {
      const params: unknown = JSON.parse(typeof given === "string" ? given || "{}" : JSON.stringify(given));
      if (isObject(params)) return params;
      throw new TypeError(`they are ${JSON.stringify(params)?.slice(0, 80)}`);
    } catch (error) {
      throw new ModelMistake(
        `the arguments of ${this.name} are not a JSON object: ${(error as Error).message}`,
        "invalid_arguments",
        "Call the tool again with one JSON object that matches the schema of the tool.",
      );
    }
  }

  /** Throw ModelMistake if the called tool is not in `offered`. */
  checkName(offered: ReadonlySet<string>): void {
    if (offered.has(this.name)) return;
    throw new ModelMistake(
      `the tool '${this.name.slice(0, 80)}' does not exist`,
      "tool_not_found",
      `Available: ${[...offered].join(", ")}. A skill is not a tool: run skills with execute_skill.`,
    );
  }

  /** Return the message for the model with the result of the call. */
  answered(result: unknown, pictures: readonly Picture[] = []): Message {
    // A failed run reports its error in the result.
    const isError = isObject(result) && (result.status === "failed" || result.is_error === true);
    return this.#message(result, isError, pictures);
  }

  /** Return the message for the model with an error that the model may correct. */
  refused(error: ErrorObject): Message {
    return this.#message({ error }, true, []);
  }

  #message(content: unknown, isError: boolean, pictures: readonly Picture[]): Message {
    const text = JSON.stringify(content);
    switch (this.dialect) {
      case "openai":
        return { role: "tool", tool_call_id: this.id, content: text };
      case "openai-responses":
        return { type: "function_call_output", call_id: this.id, output: text };
      case "anthropic": {
        const images = pictures.map(({ kind, data }) => {
          return { type: "image" as const, source: { type: "base64" as const, media_type: kind, data } };
        });
        const parts = images.length ? [{ type: "text" as const, text }, ...images] : text;
        return { type: "tool_result", tool_use_id: this.id, content: parts, is_error: isError };
      }
      case "mcp": {
        const images = pictures.map(({ kind, data }) => ({ type: "image" as const, data, mimeType: kind }));
        const parts = [{ type: "text" as const, text }, ...images];
        return { content: parts, isError, ...(isObject(content) ? { structuredContent: content } : {}) };
      }
    }
  }
}

/** Return the tool call in an object of an SDK. Throw TypeError for anything else: the program is wrong then. */
export function readToolCall(call: unknown): ToolCall {
  if (isObject(call)) {
    const { type, id, name } = call;
    if (isObject(call.function)) return new ToolCall("openai", id, call.function.name, call.function.arguments);
    if (type === "function_call") return new ToolCall("openai-responses", call.call_id, name, call.arguments);
    if (type === "tool_use") return new ToolCall("anthropic", id, name, call.input);
    if (typeof name === "string" && type === undefined) return new ToolCall("mcp", "", name, call.arguments);
  }
  throw new TypeError(
    "the value is not a tool call: pass an entry of message.tool_calls or an item function_call (OpenAI), " +
      "a block tool_use (Anthropic), or an object with name and arguments (MCP)",
  );
}

/** Return the names of tools from their schemas, in any format. */
export function offeredNames(tools: readonly unknown[]): string[] {
  return tools.map((tool) => {
    const described = isObject(tool) && isObject(tool.function) ? tool.function : tool;
    return isObject(described) ? String(described.name) : "";
  });
}

// -- pictures ----------------------------------------------------------------------------------------------------

/** A picture for a model, in base64. */
export interface Picture {
  kind: PictureKind;
  data: string;
}

const MOST_PICTURES = 4;
const MOST_BYTES = 512 * 1024;
const MOST_PIXELS = 8000;

/** A file of a run that may be a picture. */
export interface PictureFile {
  kind: PictureKind;
  blob_id: string;
  size_bytes: number;
}

/** Return the files of a run that may be pictures: at most 4, at most 512 KiB together. */
export function pictureFiles(result: unknown): PictureFile[] {
  if (!isObject(result) || !("run_id" in result) || !Array.isArray(result.files)) return [];
  let room = MOST_BYTES;
  const files: PictureFile[] = [];
  for (const file of result.files) {
    const isShown = file.kind === "image/png" || file.kind === "image/jpeg";
    if (!isShown || file.size_bytes > room || files.length === MOST_PICTURES) continue;
    room -= file.size_bytes;
    files.push(file);
  }
  return files;
}

/**
 * Return whether the content, in base64, is a picture that models accept. The kind of a file depends only on its name.
 * A model refuses the whole conversation if one image is not valid.
 */
export function isPicture(kind: PictureKind, content: string): boolean {
  const text = atob(content);
  if (kind === "image/jpeg") return text.startsWith("\xff\xd8\xff") && /\xff\xd9\0*$/.test(text.slice(-64));
  const isWhole = text.startsWith("\x89PNG\r\n\x1a\n\0\0\0\rIHDR") && text.endsWith("IEND\xaeB`\x82");
  const number = (at: number) => [0, 1, 2, 3].reduce((sum, next) => sum * 256 + text.charCodeAt(at + next), 0);
  const fits = (pixels: number) => pixels > 0 && pixels <= MOST_PIXELS;
  return isWhole && fits(number(16)) && fits(number(20));
}
