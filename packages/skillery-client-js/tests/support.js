// Faulty connections and servers for the tests. tests/client/test_client_js.py starts the Skillery server.
import { createServer as createHttpServer } from "node:http";
import { connect, createServer } from "node:net";
import { after } from "node:test";

export const URL_OF_SERVER = process.env.SKILLERY_URL;

/** Listen at a free port until the tests of this file have ended, and return the address. */
async function listening(server) {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  after(() => server.close());
  return `http://127.0.0.1:${server.address().port}`;
}

/** Return an address at which nothing listens. */
export async function unused() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

/**
 * Return a line: an address that forwards to the server. Each connection takes the next entry of `troubles`. "lost":
 * the response is dropped. A number: the connection ends after so many bytes of the response.
 */
export async function lineTo(url, troubles) {
  const { hostname, port } = new URL(url);
  const line = { url: "", connections: 0 };
  const server = createServer((client) => {
    line.connections += 1;
    let left = troubles.shift() ?? Infinity;
    if (left === "lost") left = 0;
    const target = connect(Number(port), hostname);
    client.on("error", () => target.destroy());
    target.on("error", () => client.destroy());
    client.pipe(target);
    target.on("data", (piece) => {
      client.write(piece.subarray(0, left));
      left -= Math.min(piece.length, left);
      if (left === 0) client.destroySoon();
    });
    target.on("end", () => client.end());
    client.on("close", () => target.destroy());
  });
  line.url = await listening(server);
  return line;
}

/** Return the address of a server that answers with each of `answers` in turn: a status, a body and headers. */
export async function scripted(...answers) {
  const server = createHttpServer((request, response) => {
    request.resume();
    request.on("end", () => {
      const answer = answers.shift();
      if (answer === undefined) return response.destroy(); // an unexpected request
      const { status = 200, body = "", headers = {} } = answer;
      response.writeHead(status, { connection: "close", ...headers });
      response.end(typeof body === "string" ? body : JSON.stringify(body));
    });
  });
  return listening(server);
}
