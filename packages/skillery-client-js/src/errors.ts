// Errors of the client.

/** Base class of the errors that a call raises. */
export class ClientError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The connection failed. `sent` is false if the server cannot have received the request. Browsers do not tell. */
export class ConnectionFailed extends ClientError {
  readonly sent: boolean;

  constructor(message: string, sent: boolean, options?: ErrorOptions) {
    super(message, options);
    this.sent = sent;
  }
}

/** The call was not answered within `timeoutMs`. The server may have executed the call. */
export class DeadlineExceeded extends ConnectionFailed {
  constructor(message: string) {
    super(message, true);
  }
}

/** The answer is not from a Skillery server, but from a proxy or another program, or is malformed or too large. */
export class StrangeAnswer extends ClientError {
  /** HTTP status. */
  readonly status: number;

  constructor(message: string, status: number) {
    super(message);
    this.status = status;
  }
}

/** An error object of JSON-RPC. */
export interface ErrorObject {
  code?: number;
  message?: string;
  data?: unknown;
}

/** The server answered with an error. Each known code has a subclass. Other codes raise this class. */
export class AnsweredError extends ClientError {
  /** The error object as received. */
  readonly object: ErrorObject;
  readonly code: number;
  /** The details of the error, by name. */
  readonly data: Record<string, unknown>;

  constructor(error: ErrorObject) {
    const { code = 0, message = "", data } = error;
    const details = isObject(data) ? data : {};
    super(typeof details.hint === "string" ? `${message.replace(/\.$/, "")}. ${details.hint}` : message);
    this.object = error;
    this.code = code;
    this.data = details;
  }

  /** Stable name of the error, such as `skill_not_found`. "" if the error has no name. */
  get type(): string {
    return String(this.data.type ?? "");
  }

  /** A sentence about the remedy. */
  get hint(): string | undefined {
    return this.data.hint as string | undefined;
  }

  /** Milliseconds after which a retry may succeed, if the server knows. */
  get retryAfterMs(): number | undefined {
    return this.data.retry_after_ms as number | undefined;
  }
}

export class ParseError extends AnsweredError {}
export class InvalidRequest extends AnsweredError {}
/** The server does not know the method: its name is wrong, or the server is older than this client. */
export class MethodNotFound extends AnsweredError {}
export class InvalidParams extends AnsweredError {}
/** The server failed. An admin finds the error in the server's log by `data.request_id`. */
export class InternalError extends AnsweredError {}
export class NotAuthenticated extends AnsweredError {}
export class NotAllowed extends AnsweredError {}
export class NotFound extends AnsweredError {}
export class Conflict extends AnsweredError {}
export class TooLarge extends AnsweredError {}
/** The server is busy. A retry may succeed after `retryAfterMs`. */
export class Busy extends AnsweredError {}

/** A policy of the server refuses the request. */
export class Refused extends AnsweredError {
  /** The reasons. */
  get findings(): Record<string, unknown>[] {
    return Array.isArray(this.data.findings) ? this.data.findings : [];
  }
}

const BY_CODE = new Map<number, typeof AnsweredError>([
  [-32700, ParseError],
  [-32600, InvalidRequest],
  [-32601, MethodNotFound],
  [-32602, InvalidParams],
  [-32603, InternalError],
  [-32001, NotAuthenticated],
  [-32002, NotAllowed],
  [-32003, NotFound],
  [-32004, Conflict],
  [-32005, TooLarge],
  [-32006, Busy],
  [-32007, Refused],
]);

/** Return the error for an error object of the server. */
export function errorOf(error: ErrorObject): AnsweredError {
  return new (BY_CODE.get(error.code ?? 0) ?? AnsweredError)(error);
}

export function isObject(value: unknown): value is Record<string, any> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
