// Client of a Skillery server: `new Skillery(url, {token})` has every method of the server.
import { type Content, Blobs } from "./blobs.ts";
import { type CallOptions, Connection, type Options, decoded, errorIn, fieldOf } from "./connection.ts";
import { foreignAnswer, newKey, piecesOf, sleep, textOf, valueOf } from "./connection.ts";
import { AnsweredError, ConnectionFailed, NotAuthenticated } from "./errors.ts";
import { FOR_MODELS, ONCE, REPEATABLE, TOOLS, type Progress, type RunRecord } from "./methods.ts";
import type * as tools from "./tools.ts";
import { ModelMistake, type Picture, isPicture, offeredNames, pictureFiles, readToolCall } from "./tools.ts";

export { AnsweredError, Busy, ClientError, Conflict, ConnectionFailed, DeadlineExceeded } from "./errors.ts";
export { InternalError, InvalidParams, InvalidRequest, MethodNotFound, NotAllowed, NotAuthenticated } from "./errors.ts";
export { NotFound, ParseError, Refused, StrangeAnswer, TooLarge, type ErrorObject } from "./errors.ts";
export type * from "./methods.ts";
export type { DownloadOptions, OpenBlob, UploadOptions } from "./blobs.ts";
export type { ToolForms } from "./tools.ts";
export type { CallOptions, Content, Options };

/** An event of a run: its status, new text of its log, lost bytes of its log, its progress, or its end. */
export type RunEvent =
  | { event: "status"; status: RunRecord["status"] }
  | { event: "log"; text: string; /** Offset behind the text: pass it as `after`. */ next: number }
  | { event: "gap"; bytes: number }
  | ({ event: "progress" } & Progress)
  | { event: "end"; run: RunRecord };

export interface FollowOptions {
  /** Offset in the log to begin at, in bytes. */
  after?: number;
  signal?: AbortSignal;
}

export interface ToolOptions {
  /** Further methods that are tools too, for example `create_skill`. */
  include?: readonly string[];
  signal?: AbortSignal;
}

export interface HandleOptions {
  /** Whether the message has small pictures that the run wrote. Default: true. */
  images?: boolean;
  signal?: AbortSignal;
}

/** The tool that models get in addition to those of the protocol. */
const SEARCH = "search_skills";
/** One request waits this long for a run, so that a dead server is noticed. */
const WAIT_MS = 10_000;
const MOST_EVENT_CHARACTERS = 8 * 1024 * 1024;

/**
 * Client of a Skillery server. The defaults of `url` and `token` are the variables SKILLERY_URL and SKILLERY_TOKEN of
 * the environment. With the token "", no token is sent. Calls throw a ClientError if they fail.
 */
export class Skillery extends Blobs {
  readonly #offered = new Set(TOOLS);

  constructor(url?: string, options: Options = {}) {
    super(new Connection(url, options));
  }

  /** Address of the server. */
  get url(): string {
    return this.connection.url;
  }

  /** Call a method by its name, and return its result. This also works for methods that this client does not know. */
  override async call(method: string, params: object = {}, options: CallOptions = {}): Promise<any> {
    return this.#call(method, await this.withUploads(params, options.signal), options);
  }

  async #call(method: string, params: object, options: CallOptions): Promise<any> {
    const { signal, timeoutMs = this.connection.timeoutMs } = options;
    const key = options.idempotencyKey ?? (this.connection.hasRetries && ONCE.includes(method) ? newKey() : undefined);
    const headers = { "content-type": "application/json", ...(key === undefined ? {} : { "idempotency-key": key }) };
    const init = { method: "POST", headers, body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }) };
    const isRepeatable = key !== undefined || REPEATABLE.includes(method);
    const exchange = { signal, timeoutMs, isRepeatable };
    return this.connection.exchange("/rpc", init, (answer) => fieldOf(answer, "result"), exchange);
  }

  /** Return whether the server is ready: `GET /readyz` answers 200. */
  async isReady(options: { signal?: AbortSignal } = {}): Promise<boolean> {
    try {
      const response = await this.request("/readyz", { signal: options.signal ?? null });
      await response.body?.cancel();
      return response.status === 200;
    } catch (error) {
      if (error instanceof ConnectionFailed) return false;
      throw error;
    }
  }

  /** Send one request with the token to any path of the server, and return the response with any status. */
  request(path: string, init: RequestInit = {}): Promise<Response> {
    return this.connection.request(path, init);
  }

  // -- runs in the background ------------------------------------------------------------------------------------

  /** Wait until a run has ended, and return the run. After a connection error, the client connects again. */
  async waitRun(runId: string, options: { signal?: AbortSignal } = {}): Promise<RunRecord> {
    const { timeoutMs } = this.connection;
    const wait_ms = Math.min(WAIT_MS, Math.floor((timeoutMs ?? Infinity) / 2));
    for (;;) {
      const run = await this.getRun({ run_id: runId, wait_ms }, options);
      if (run.finished_at !== null) return run;
    }
  }

  /**
   * Yield the events of a run until it has ended. After a connection error, the client connects again, and no text of
   * the log is lost or repeated. The events `status` and `progress` may come again.
   */
  async *followRun(runId: string, options: FollowOptions = {}): AsyncGenerator<RunEvent, void> {
    const { signal } = options;
    const connection = this.connection;
    let after = options.after ?? 0;
    let patience = connection.patience(true);
    for (;;) {
      try {
        const path = `/v1/runs/${encodeURIComponent(runId)}/events?after=${after}`;
        const init = { headers: { accept: "text/event-stream" }, signal: signal ?? null };
        const response = await connection.request(path, init);
        if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
          throw errorIn(await connection.answer(response, signal));
        }
        const messages = messagesOf(response);
        try {
          for (;;) {
            const next = await connection.guard(signal, () => messages.next());
            if (next.done) break;
            patience = connection.patience(true); // received events reset the number of failed attempts
            const event = eventOf(response, next.value);
            if (event?.event === "log") after = event.next;
            if (event !== undefined) yield event;
            if (event?.event === "end") return;
          }
        } finally {
          await messages.return(undefined);
        }
        throw new ConnectionFailed(`${connection.url} ended the events before the run`, true);
      } catch (error) {
        await sleep(patience.waitAfter(error), signal);
      }
    }
  }

  // -- tools of a model ------------------------------------------------------------------------------------------

  /** Return the system prompt for a model with the tools of `toolsFor`. */
  async prompt(options: { signal?: AbortSignal } = {}): Promise<string> {
    return this.connection.exchange(`/prompt?include=${SEARCH}`, {}, textOf, this.#reading(options.signal));
  }

  /** Return the schemas of the eight tools of the Skills Protocol and of `search_skills`, in the format of an SDK. */
  async toolsFor<Form extends keyof tools.ToolForms>(
    form: Form,
    options: ToolOptions = {},
  ): Promise<tools.ToolForms[Form][]> {
    const query = new URLSearchParams({ format: form, include: [SEARCH, ...(options.include ?? [])].join(",") });
    const found = await this.connection.exchange(`/tools?${query}`, {}, valueOf, this.#reading(options.signal));
    for (const name of offeredNames(found)) this.#offered.add(name);
    return found;
  }

  /**
   * Execute a tool call of a model, and return the message with the result for the model.
   *
   * Only the eight tools, and the tools that `toolsFor` included, can be called. Errors that a model can correct are
   * part of the message: arguments that are not JSON, unknown tools, and errors of the server. Throw ConnectionFailed
   * or StrangeAnswer if the server does not answer, NotAuthenticated if the token is not valid, and TypeError if
   * `toolCall` is not a tool call.
   */
  handle(toolCall: tools.OpenAICall, options?: HandleOptions): Promise<tools.OpenAIMessage>;
  handle(toolCall: tools.ResponsesCall, options?: HandleOptions): Promise<tools.ResponsesItem>;
  handle(toolCall: tools.AnthropicCall, options?: HandleOptions): Promise<tools.AnthropicResult>;
  handle(toolCall: tools.McpCall, options?: HandleOptions): Promise<tools.McpResult>;
  handle(toolCall: unknown, options?: HandleOptions): Promise<any>;
  async handle(toolCall: unknown, { images = true, signal }: HandleOptions = {}): Promise<unknown> {
    const call = readToolCall(toolCall);
    try {
      call.checkName(this.#offered);
      const result = await this.#call(call.name, { ...FOR_MODELS[call.name], ...call.params() }, { signal });
      return call.answered(result, images && call.showsImages ? await this.#pictures(result, signal) : []);
    } catch (error) {
      const isOfModel = error instanceof ModelMistake || error instanceof AnsweredError;
      if (!isOfModel || error instanceof NotAuthenticated) throw error;
      return call.refused(error.object);
    }
  }

  /** Return small pictures among the files of a run. */
  async #pictures(result: unknown, signal: AbortSignal | undefined): Promise<Picture[]> {
    const pictures: Picture[] = [];
    for (const { kind, blob_id } of pictureFiles(result)) {
      try {
        const blob = await this.readBlob({ blob_id, mode: "full" }, { signal });
        const isWhole = blob.encoding === "base64" && !blob.truncated;
        if (isWhole && isPicture(kind, blob.content)) pictures.push({ kind, data: blob.content });
      } catch (error) {
        // The token may not read blobs, or the blob has expired: the message has fewer pictures.
        if (!(error instanceof AnsweredError)) throw error;
        break;
      }
    }
    return pictures;
  }

  #reading(signal: AbortSignal | undefined) {
    return { signal, timeoutMs: this.connection.timeoutMs, isRepeatable: true };
  }
}

// -- server-sent events ------------------------------------------------------------------------------------------

interface EventMessage {
  event: string;
  id: string;
  data: string;
}

/** Yield the messages of an event stream of this server, which ends lines with "\n" only. */
async function* messagesOf(response: Response): AsyncGenerator<EventMessage> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of piecesOf(response)) {
    const blocks = (rest + decoder.decode(piece, { stream: true })).split("\n\n");
    rest = blocks.pop() ?? "";
    if (rest.length > MOST_EVENT_CHARACTERS) throw foreignAnswer(response);
    for (const block of blocks) {
      const message: EventMessage = { event: "", id: "", data: "" };
      for (const line of block.split("\n")) {
        const [, field, value] = /^(event|id|data): ?(.*)$/s.exec(line) ?? [];
        if (field !== undefined) message[field as keyof EventMessage] = value ?? "";
      }
      if (message.event) yield message;
    }
  }
}

/** Return the event in a message, or undefined for an event that this client does not know. */
function eventOf(response: Response, { event, id, data }: EventMessage): RunEvent | undefined {
  const value = decoded(response, data); // the record of a failed run has a field `error`: it is no error of the call
  if (event === "end") return { event, run: value as RunRecord };
  if (event === "log") return { event, text: value.text, next: Number(id) };
  if (event === "status") return { event, status: value.status };
  if (event === "gap") return { event, bytes: value.bytes };
  if (event === "progress") return { event, ...(value as Progress) };
  return undefined;
}
