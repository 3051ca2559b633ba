// Uploads and downloads of blobs of any size.
import { type Answer, type CallOptions, Connection, errorIn, foreignAnswer, newKey } from "./connection.ts";
import { piecesOf, sleep, strangeAnswer, valueOf } from "./connection.ts";
import { ConnectionFailed, isObject } from "./errors.ts";
import { Methods, type NewBlob, type RunFile } from "./methods.ts";

/** What can be uploaded. A `File` is a `Blob`; `fs.openAsBlob(path)` of Node.js opens a file as a `Blob`. */
export type Content = Blob | ArrayBuffer | Uint8Array | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

export interface UploadOptions extends Omit<CallOptions, "timeoutMs"> {
  /** Media type. Default: the type of a `Blob`, else application/octet-stream. */
  kind?: string;
  /** Lifetime in seconds. */
  ttl?: number;
}

export interface DownloadOptions {
  /** First byte. Default: 0. */
  start?: number;
  /** Byte after the last one. Default: the size of the blob. */
  stop?: number;
  signal?: AbortSignal;
}

/** A blob that is being downloaded. */
export interface OpenBlob {
  /** Media type. */
  kind: string;
  /** Size of the requested part, if the server tells it. */
  sizeBytes: number | undefined;
  stream: ReadableStream<Uint8Array>;
}

const DEFAULT_KIND = "application/octet-stream";

/** The methods of the client that upload and download content. */
export abstract class Blobs extends Methods {
  protected readonly connection: Connection;

  constructor(connection: Connection) {
    super();
    this.connection = connection;
  }

  /**
   * Upload a blob, and return its id and size. After a connection error, bytes and Blobs are sent again with the same
   * idempotency key. Streams are sent once. Browsers upload streams over HTTP/2 only; Blobs always work.
   */
  async uploadBlob(content: Content, options: UploadOptions = {}): Promise<NewBlob> {
    const { signal, ttl, kind, idempotencyKey } = options;
    const body = bodyOf(content);
    const isStream = body instanceof ReadableStream;
    const key = idempotencyKey ?? (this.connection.hasRetries ? newKey() : undefined);
    const headers = new Headers({ "content-type": kind || (body instanceof Blob && body.type) || DEFAULT_KIND });
    if (key !== undefined) headers.set("idempotency-key", key);
    const path = ttl === undefined ? "/blobs" : `/blobs?ttl=${ttl}`;
    const init = { method: "POST", headers, body, ...(isStream ? { duplex: "half" } : {}) };
    if (!isStream) return this.connection.exchange(path, init, blobOf, { signal, isRepeatable: true });
    const response = await this.connection.request(path, { ...init, signal: signal ?? null });
    return blobOf(await this.connection.answer(response, signal));
  }

  /** Download a blob into memory. Throw StrangeAnswer if it is larger than `maxAnswerBytes`. */
  async downloadBlob(blobId: string, options: DownloadOptions = {}): Promise<Uint8Array> {
    const from = { url: this.connection.url + addressOf(blobId), status: 200 };
    return this.connection.whole(from, this.streamBlob(blobId, options), options.signal);
  }

  /** Open a blob for reading. Throw NotFound if it does not exist. */
  async openBlob(blobId: string, options: DownloadOptions = {}): Promise<OpenBlob> {
    const position = new Position(options.start ?? 0, options.stop);
    const pieces = this.#pieces(blobId, position, options.signal);
    const first = await pieces.next();
    return { kind: position.kind, sizeBytes: position.total, stream: streamOf(pieces, first) };
  }

  /** Yield the bytes of a blob in pieces. After a connection error, the download continues at the same position. */
  streamBlob(blobId: string, options: DownloadOptions = {}): AsyncGenerator<Uint8Array> {
    return this.#pieces(blobId, new Position(options.start ?? 0, options.stop), options.signal);
  }

  async *#pieces(blobId: string, position: Position, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    const connection = this.connection;
    let patience = connection.patience(true);
    while (!position.isDone) {
      try {
        // The server may send the client to its storage. `fetch` drops the token on the way to another origin.
        const init: RequestInit = { headers: position.headers(), redirect: "follow", signal: signal ?? null };
        const response = await connection.request(addressOf(blobId), init);
        if (response.status !== 200 && response.status !== 206) {
          throw errorIn(await connection.answer(response, signal));
        }
        position.begin(response);
        const pieces = piecesOf(response);
        try {
          for (;;) {
            const next = await connection.guard(signal, () => pieces.next());
            if (next.done) break;
            position.at += next.value.length;
            patience = connection.patience(true); // received bytes reset the number of failed attempts
            yield next.value;
          }
        } finally {
          await pieces.return(undefined);
        }
        if (position.stop === undefined || position.isDone) return;
        throw new ConnectionFailed(`the download from ${connection.url} ended early`, true);
      } catch (error) {
        await sleep(patience.waitAfter(error), signal);
      }
    }
  }

  /** Upload files for the workspace of a run. Return the param `files` of `executeSkill`, `runCode`, `callTool`. */
  async uploadFiles(files: Record<string, Content>, options: UploadOptions = {}): Promise<RunFile[]> {
    const uploaded: RunFile[] = [];
    for (const [path, content] of Object.entries(files)) {
      uploaded.push({ path, blob_id: (await this.uploadBlob(content, options)).blob_id });
    }
    return uploaded;
  }

  /** Return the params. If `files` is an object from paths to contents, upload the contents first. */
  protected async withUploads(params: object, signal: AbortSignal | undefined): Promise<object> {
    const files = "files" in params ? params.files : undefined;
    return isObject(files) ? { ...params, files: await this.uploadFiles(files, { signal }) } : params;
  }
}

/** The position in a download. `begin` checks that each response has the same blob, from this position. */
class Position {
  readonly start: number;
  at: number;
  stop: number | undefined;
  kind = DEFAULT_KIND;
  #etag: string | null | undefined;

  constructor(start: number, stop: number | undefined) {
    this.start = this.at = start;
    this.stop = stop;
  }

  get isDone(): boolean {
    return this.stop !== undefined && this.at >= this.stop;
  }

  get total(): number | undefined {
    return this.stop === undefined ? undefined : Math.max(0, this.stop - this.start);
  }

  headers(): Record<string, string> {
    if (this.at === 0 && this.stop === undefined) return {};
    return { range: `bytes=${this.at}-${this.stop === undefined ? "" : this.stop - 1}` };
  }

  begin(response: Response): void {
    const { headers, status } = response;
    const [begins, size] = rangeOf(status, headers);
    const etag = headers.get("etag");
    if (begins !== this.at || (this.#etag !== undefined && etag !== this.#etag)) {
      throw strangeAnswer(response, "with another range than requested");
    }
    this.#etag = etag;
    this.kind = headers.get("content-type") ?? DEFAULT_KIND;
    if (size !== undefined) this.stop = Math.min(this.stop ?? size, size);
  }
}

/** Return the position of the first byte of a response, and the size of the whole blob, if they are known. */
function rangeOf(status: number, headers: Headers): [number | undefined, number | undefined] {
  if (status === 206) {
    const part = /^bytes (\d{1,15})-\d+\/(\d{1,15})$/.exec(headers.get("content-range") ?? "");
    return part ? [Number(part[1]), Number(part[2])] : [undefined, undefined];
  }
  const length = headers.get("content-length") ?? "";
  return [0, /^\d{1,15}$/.test(length) && !headers.get("content-encoding") ? Number(length) : undefined];
}

function blobOf(answer: Answer): NewBlob {
  const blob = valueOf(answer);
  if (!isObject(blob) || typeof blob.blob_id !== "string") throw foreignAnswer(answer);
  return blob as NewBlob;
}

function bodyOf(content: Content): Blob | ReadableStream<Uint8Array> {
  if (content instanceof Blob || content instanceof ReadableStream) return content;
  if (content instanceof ArrayBuffer) return new Blob([content]);
  if (ArrayBuffer.isView(content)) return new Blob([content as Uint8Array<ArrayBuffer>]);
  if (typeof content === "object" && content !== null && Symbol.asyncIterator in content) {
    return streamOf(content[Symbol.asyncIterator]());
  }
  throw new TypeError(
    "the content is not a Blob, bytes or a stream: pass new Blob([text]) for a text, openAsBlob(path) for a file",
  );
}

/** Return a stream of the items of an iterator. `first` was taken from it already. */
function streamOf(
  items: AsyncIterator<Uint8Array>,
  first?: IteratorResult<Uint8Array>,
): ReadableStream<Uint8Array> {
  let taken = first;
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const next = taken ?? (await items.next());
        taken = undefined;
        if (next.done) controller.close();
        else controller.enqueue(next.value);
      },
      async cancel() {
        await items.return?.();
      },
    },
    { highWaterMark: 0 },
  );
}

function addressOf(blobId: string): string {
  return `/blobs/${encodeURIComponent(blobId).replaceAll("%3A", ":")}`;
}
