// A real OpenID Connect provider for the tests. The tests give it its keys, so that they can sign tokens too.
//
// argument: the module of oidc-provider. stdin: one JSON object, {keys, resource, scopes, clients, tls}. stdout: the issuer.
// POST /control changes the running provider: {keys}, {claims}, {answers: {path: {status, body, drips, gzip}}}, {reset: true},
// {seconds: life of access tokens}, {denies: true}.
// GET /control returns the number of requests by path.

import http from 'node:http'
import https from 'node:https'
import { createInterface } from 'node:readline'
import { gzipSync } from 'node:zlib'

const { Provider } = await import(process.argv[2])
const read = async (stream) => JSON.parse(Buffer.concat(await Array.fromAsync(stream)).toString())
const lines = createInterface({ input: process.stdin })
const given = JSON.parse((await lines[Symbol.asyncIterator]().next()).value)
const counts = {}
let claims = given.claims ?? {}
let answers = {}
let seconds = 600
let denies = false
let handle

const server = given.tls ? https.createServer(given.tls) : http.createServer()
await new Promise((done) => server.listen(given.port ?? 0, '127.0.0.1', done))
const issuer = `${given.tls ? 'https' : 'http'}://127.0.0.1:${server.address().port}`

function serve(keys) {
  const provider = new Provider(given.stated_issuer ?? issuer, {
    jwks: { keys },
    clients: given.clients,
    clientDefaults: { id_token_signed_response_alg: keys[0].alg },
    clientAuthMethods: ['client_secret_basic', 'client_secret_post', 'none'],
    cookies: { keys: ['tests'] },
    scopes: ['openid', 'offline_access', ...given.scopes],
    ttl: { AccessToken: () => seconds, RefreshToken: 86400, DeviceCode: 600, ClientCredentials: 600, Interaction: 600, Session: 600, Grant: 600 },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      deviceFlow: { enabled: true },
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, resource, client) => ({
          scope: given.scopes.join(' '),
          audience: resource,
          accessTokenFormat: client.clientId.startsWith('opaque') ? 'opaque' : 'jwt',
          jwt: { sign: { alg: keys[0].alg } },
        }),
      },
    },
    extraTokenClaims: (ctx, token) => claims[token.clientId] ?? claims[token.accountId],
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  })
  // The provider states no interval, so devices would wait 5 seconds.
  provider.use(async (ctx, next) => {
    await next()
    if (ctx.body?.device_code) ctx.body = { ...ctx.body, interval: 0.2 }
  })
  const callback = provider.callback()
  handle = (request, response) =>
    request.url.startsWith('/interaction/') ? logIn(provider, request, response) : callback(request, response)
}

// Every visitor is the person `ann`, who consents to everything, unless the tests say that she denies.
async function logIn(provider, request, response) {
  const { prompt, params, session } = await provider.interactionDetails(request, response)
  if (denies) {
    return provider.interactionFinished(request, response, { error: 'access_denied', error_description: 'ann says no' })
  }
  if (prompt.name === 'login') {
    return provider.interactionFinished(request, response, { login: { accountId: 'ann' } })
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id })
  grant.addOIDCScope(params.scope ?? 'openid')
  for (const resource of [params.resource].flat().filter(Boolean)) grant.addResourceScope(resource, params.scope)
  await provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } })
}

async function control(request, response) {
  if (request.method === 'POST') {
    const change = await read(request)
    if (change.keys) serve(change.keys)
    claims = change.claims ?? claims
    answers = change.answers ?? answers
    seconds = change.seconds ?? seconds
    denies = change.denies ?? denies
    if (change.reset) for (const path of Object.keys(counts)) delete counts[path]
  }
  response.setHeader('content-type', 'application/json')
  response.end(JSON.stringify(counts))
}

// Answer with a byte at a time, without end.
function drip(response) {
  const timer = setInterval(() => response.write(' '), 100)
  response.on('close', () => clearInterval(timer))
}

serve(given.keys)
server.on('request', (request, response) => {
  const path = new URL(request.url, issuer).pathname
  if (path === '/control') return control(request, response)
  counts[path] = (counts[path] ?? 0) + 1
  const answer = answers[path] ?? answers['*']
  if (answer === undefined) return handle(request, response)
  response.statusCode = answer.status ?? 200
  if (answer.drips) return drip(response)
  if (answer.gzip) response.setHeader('content-encoding', 'gzip')
  response.end(answer.gzip ? gzipSync(answer.body) : (answer.body ?? ''))
})
console.log(issuer)
lines.on('close', () => process.exit(0))
