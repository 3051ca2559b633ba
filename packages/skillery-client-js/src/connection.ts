// Requests to one server: token, deadline, retries, and the bound of answers.
import { Busy, ClientError, ConnectionFailed, DeadlineExceeded, StrangeAnswer } from "./errors.ts";
import { errorOf, isObject } from "./errors.ts";

export type Token = string | (() => string | undefined | Promise<string | undefined>);

export interface Options {
  /** A token, or a function that returns the current token before each request. Default: SKILLERY_TOKEN. */
  token?: Token;
  /** Limit of a whole call with its retries. Uploads, downloads and event streams have no limit. Default: none. */
  timeoutMs?: number;
  /** Replacement of the global `fetch`, for example for a proxy or private certificates. */
  fetch?: typeof fetch;
  /** Limit of an answer that is read at once. Default: 64 MiB. */
  maxAnswerBytes?: number;
  /** How often a call is sent at most. 1: no retries and no automatic idempotency keys. Default: 5. */
  attempts?: number;
  /** Longest wait before a retry. If the server requests a longer wait, the call fails at once. Default: 60,000. */
  longestWaitMs?: number;
}

export interface CallOptions {
  /** Cancels the call, which then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** Overrides `timeoutMs` of the client. */
  timeoutMs?: number | undefined;
  /** Calls with the same key are executed once. Default: a random key, for the methods that accept one. */
  idempotencyKey?: string | undefined;
}

/** A response whose body was read. */
export interface Answer {
  url: string;
  status: number;
  text: string;
}

export interface Exchange {
  signal?: AbortSignal | undefined;
  timeoutMs?: number | undefined;
  /** Whether sending the request twice is harmless. */
  isRepeatable: boolean;
}

const FIRST_WAIT_MS = 200;
const GATEWAY = new Set([502, 503, 504]);
const UNSENT = new Set(
  ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"],
);

/** A server, and how to reach it. */
export class Connection {
  readonly url: string;
  readonly mostBytes: number;
  readonly timeoutMs: number | undefined;
  readonly #attempts: number;
  readonly #longestWaitMs: number;
  readonly #token: Token | undefined;
  readonly #fetch: typeof fetch;

  constructor(url: string | undefined, options: Options) {
    this.url = addressOf(url);
    this.timeoutMs = options.timeoutMs;
    this.mostBytes = options.maxAnswerBytes ?? 64 * 1024 * 1024;
    this.#attempts = options.attempts ?? 5;
    this.#longestWaitMs = options.longestWaitMs ?? 60_000;
    this.#token = options.token ?? environment("SKILLERY_TOKEN");
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  get hasRetries(): boolean {
    return this.#attempts > 1;
  }

  patience(isRepeatable: boolean, timeoutMs?: number): Patience {
    return new Patience(this.#attempts, this.#longestWaitMs, isRepeatable, timeoutMs);
  }

  /** Send one request with the token, and return the response with any status. The body is not read yet. */
  async request(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token) headers.set("authorization", `Bearer ${token}`);
    // A fixed length and ranges count bytes without compression. Browsers choose this header themselves.
    headers.set("accept-encoding", "identity");
    return this.guard(init.signal, () => this.#fetch(this.url + path, { redirect: "manual", ...init, headers }));
  }

  /** Await a step of a request. Turn its failure into ConnectionFailed, but throw the reason of an aborted signal. */
  async guard<T>(signal: AbortSignal | null | undefined, step: () => Promise<T>): Promise<T> {
    signal?.throwIfAborted();
    try {
      return await step();
    } catch (error) {
      signal?.throwIfAborted();
      throw connectionFailed(this.url, error);
    }
  }

  /** Send a request, and return the result of `read` for its answer. Send it again as Patience allows. */
  async exchange<T>(path: string, init: RequestInit, read: (answer: Answer) => T, exchange: Exchange): Promise<T> {
    const { signal, timeoutMs, isRepeatable } = exchange;
    const patience = this.patience(isRepeatable, timeoutMs);
    const deadline = timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs);
    const signals = [signal, deadline].filter((one) => one !== undefined);
    const both = signals.length > 1 ? AbortSignal.any(signals) : (signals[0] ?? null);
    for (;;) {
      try {
        return read(await this.answer(await this.request(path, { ...init, signal: both }), both));
      } catch (error) {
        if (deadline?.aborted && !signal?.aborted) {
          throw new DeadlineExceeded(`${this.url} did not answer the call within ${timeoutMs} ms`);
        }
        await sleep(patience.waitAfter(error), signal);
      }
    }
  }

  /** Read the body of a response. Throw StrangeAnswer if it has more than `maxAnswerBytes`. */
  async answer(response: Response, signal?: AbortSignal | null): Promise<Answer> {
    const { url, status } = response;
    return { url, status, text: new TextDecoder().decode(await this.whole(response, piecesOf(response), signal)) };
  }

  /** Return all pieces as one. Throw StrangeAnswer if they have more than `maxAnswerBytes`. */
  async whole(from: Origin, pieces: AsyncIterable<Uint8Array>, signal?: AbortSignal | null): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    let size = 0;
    const read = async () => {
      for await (const piece of pieces) {
        size += piece.length;
        if (size > this.mostBytes) return false;
        parts.push(piece);
      }
      return true;
    };
    if (!(await this.guard(signal, read))) {
      throw strangeAnswer(from, `with more than ${this.mostBytes} bytes, the limit of maxAnswerBytes`);
    }
    const whole = new Uint8Array(size);
    let at = 0;
    for (const part of parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }
}

/** The retries of one call. */
export class Patience {
  readonly #attempts: number;
  readonly #longestWaitMs: number;
  readonly #isRepeatable: boolean;
  readonly #end: number;
  #failures = 0;

  constructor(attempts: number, longestWaitMs: number, isRepeatable: boolean, timeoutMs: number | undefined) {
    this.#attempts = attempts;
    this.#longestWaitMs = longestWaitMs;
    this.#isRepeatable = isRepeatable;
    this.#end = performance.now() + (timeoutMs ?? Infinity);
  }

  /** Return the milliseconds until the next attempt. Throw `error` if a retry is useless or not allowed. */
  waitAfter(error: unknown): number {
    const wait = this.#nextWait(error);
    if (performance.now() + wait >= this.#end) throw error;
    return wait;
  }

  #nextWait(error: unknown): number {
    // The server is executing this call under the same key: wait for its answer without a limit of attempts.
    if (error instanceof Busy && error.type === "call_under_way") return requestedDelay(error);
    this.#failures += 1;
    const wait = this.#wait(error);
    if (wait === undefined || this.#failures >= this.#attempts || wait > this.#longestWaitMs) throw error;
    // Never earlier than requested, and with jitter, so that clients do not return all at once.
    return wait * (1 + Math.random() / 4);
  }

  #wait(error: unknown): number | undefined {
    if (error instanceof Busy) return requestedDelay(error);
    const isFailed = error instanceof ConnectionFailed;
    const isUnsent = isFailed && !error.sent;
    const isLost = isFailed || (error instanceof StrangeAnswer && GATEWAY.has(error.status));
    return isUnsent || (isLost && this.#isRepeatable) ? FIRST_WAIT_MS * 2 ** (this.#failures - 1) : undefined;
  }
}

function requestedDelay(error: Busy): number {
  return Math.max(0, error.retryAfterMs ?? 1000);
}

/** Wait. Throw the reason of the signal if it is aborted. */
export async function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", finish);
      resolve();
    };
    const timer = setTimeout(finish, ms);
    signal?.addEventListener("abort", finish);
  });
  signal?.throwIfAborted();
}

/** Yield the body of a response in pieces, and cancel it if the caller stops early. */
export async function* piecesOf(response: Response): AsyncGenerator<Uint8Array> {
  const reader = response.body?.getReader();
  if (reader === undefined) return;
  let isWhole = false;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
    isWhole = true;
  } finally {
    if (!isWhole) await reader.cancel().catch(() => undefined); // the body has failed already
  }
}

// -- answers -----------------------------------------------------------------------------------------------------

/** The address and status of a response, for messages. */
type Origin = Pick<Response, "url" | "status">;

/** Return the JSON value in an answer. Throw the error of the server in it, or StrangeAnswer. */
export function valueOf(answer: Answer): any {
  const value = decoded(answer, answer.text);
  if (isObject(value) && isObject(value.error)) throw errorOf(value.error);
  if (answer.status >= 400) throw foreignAnswer(answer);
  return value;
}

/** Return the JSON value of a text. Throw StrangeAnswer if it is not JSON. */
export function decoded(from: Origin, text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    throw foreignAnswer(from);
  }
}

/** Return the text of an answer. Throw the error of the server in it, or StrangeAnswer. */
export function textOf(answer: Answer): string {
  if (answer.status === 200) return answer.text;
  throw errorIn(answer);
}

/** Return the error for an answer that has another status or media type than a result. */
export function errorIn(answer: Answer): unknown {
  try {
    valueOf(answer);
  } catch (error) {
    return error;
  }
  return foreignAnswer(answer);
}

/** Return the field `name` of the object in an answer. Throw the error of the server in it, or StrangeAnswer. */
export function fieldOf(answer: Answer, name: string): any {
  const value = valueOf(answer);
  if (!isObject(value) || !(name in value)) throw foreignAnswer(answer);
  return value[name];
}

export function foreignAnswer(answer: Origin): StrangeAnswer {
  return strangeAnswer(answer, `HTTP ${answer.status} with a body that is not a Skillery response`);
}

export function strangeAnswer(from: Origin, fault: string): StrangeAnswer {
  return new StrangeAnswer(`${from.url.split("?")[0]} answered ${fault}`, from.status);
}

function connectionFailed(url: string, error: unknown): ClientError {
  if (error instanceof ClientError) return error;
  const causes: unknown[] = [];
  for (let cause = error; cause instanceof Error && causes.length < 5; cause = cause.cause) causes.push(cause);
  const codes = causes.map((cause) => (cause as { code?: unknown }).code);
  const sent = !codes.some((code) => UNSENT.has(String(code)));
  const last = causes.at(-1) as Error | undefined;
  const reason = last?.message || codes.at(-1) || String(error);
  const fault = sent ? `the connection to ${url} was lost` : `cannot connect to ${url}`;
  return new ConnectionFailed(`${fault}: ${reason}`, sent, { cause: error });
}

/** Return the address of the server: `url`, or SKILLERY_URL, or the default address of `skillery serve`. */
function addressOf(url: string | undefined): string {
  const address = url || environment("SKILLERY_URL") || "http://127.0.0.1:8080";
  if (!/^https?:\/\//i.test(address)) throw new TypeError(`'${address}' is not an http:// or https:// address`);
  return address.replace(/\/+$/, "").replace(/\/rpc$/, "");
}

function environment(name: string): string | undefined {
  const host = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return host.process?.env?.[name];
}

/** Return a random idempotency key. `crypto.randomUUID` is missing on pages without TLS. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

