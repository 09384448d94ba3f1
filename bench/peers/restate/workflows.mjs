// Workflows on Restate at its best: handlers in Node, one process, spoken to over HTTP/2; calls over its ingress on kept
// connections, a few hundred at a time. It speaks the protocol of bench/workflows/protocol.py; BENCH_TARGET holds the
// addresses of the ingress and of the admin API.

import http from "node:http";
import http2 from "node:http2";
import * as restate from "@restatedev/restate-sdk";

// The SDK asks for Node 22 because of this one function; an older Node gets it here.
Promise.withResolvers ??= function () {
  const parts = {};
  parts.promise = new this((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

const STEPS = 5;
const IN_FLIGHT = 200;
const ANSWER_MS = 30_000;
const READY_MS = 20_000;
const WARM = 100; // what Node has not compiled yet takes longer
const [ingress, admin] = (process.env.BENCH_TARGET ?? "").split(" ");

const flow = restate.service({
  name: "flow",
  handlers: {
    run: async (ctx) => {
      let number = 0;
      for (let place = 0; place < STEPS; place += 1) {
        const before = number;
        number = await ctx.run(`step ${place}`, () => before + 1);
      }
      return number;
    },
  },
});

/** Serves the handler and tells the server where; returns what ends it. */
async function served() {
  const server = http2.createServer(restate.createEndpointHandler({ services: [flow], logger: () => {} }));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const uri = `http://127.0.0.1:${server.address().port}`;
  const answer = await post(admin, "/deployments", JSON.stringify({ uri, force: true }));
  if (answer.status !== 201 && answer.status !== 200) throw new Error(`not registered: ${answer.body}`);
}

const connections = new http.Agent({ keepAlive: true, maxSockets: IN_FLIGHT });

function post(base, path, body = "", type = "application/json") {
  const { hostname, port } = new URL(base);
  const headers = body ? { "content-type": type, accept: "application/json" } : {};
  return new Promise((resolve, reject) => {
    const request = http.request({ hostname, port, path, method: "POST", headers, agent: connections }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () => resolve({ status: response.statusCode, body: Buffer.concat(parts).toString() }));
      response.on("error", reject);
    });
    request.on("error", reject);
    request.setTimeout(ANSWER_MS, () => request.destroy(new Error(`no answer from ${base}${path}`)));
    request.end(body);
  });
}

/** One workflow, from the call until its result is here. */
async function run() {
  const answer = await post(ingress, "/flow/run");
  if (answer.status !== 200 || answer.body !== String(STEPS)) throw new Error(`${answer.status} ${answer.body}`);
}

/** Until somebody serves the handler. */
async function ready() {
  const deadline = performance.now() + READY_MS;
  for (;;) {
    try {
      return await run();
    } catch (error) {
      if (performance.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

const COMMANDS = {
  async setup() {},

  async alone(workflows, seconds) {
    await served();
    await ready();
    for (let count = 0; count < WARM; count += 1) await run();
    const laps = [];
    const ends = performance.now() + seconds * 1000;
    while (laps.length < workflows && performance.now() < ends) {
      const began = performance.now();
      await run();
      laps.push(((performance.now() - began) / 1000).toFixed(6));
    }
    return laps.join(" ");
  },

  async work() {
    await served();
    await new Promise(() => {});
  },

  async many(workflows) {
    await ready();
    let left = workflows;
    const began = performance.now();
    const caller = async () => {
      while (left-- > 0) await run();
    };
    await Promise.all(Array.from({ length: IN_FLIGHT }, caller));
    return (performance.now() - began) / 1000;
  },

  async kept() {
    const query = "SELECT count(*) AS kept FROM sys_journal WHERE entry_type = 'Command: Run'";
    const answer = await post(admin, "/query", JSON.stringify({ query }));
    return JSON.parse(answer.body).rows[0].kept;
  },
};

const [command, ...numbers] = process.argv.slice(2);
process.on("SIGTERM", () => process.exit(0));
const answer = await COMMANDS[command](...numbers.map(Number));
if (answer !== undefined) console.log(String(answer));
process.exit(0);
