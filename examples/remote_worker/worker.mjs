// A worker for a Keptwork server, for Node 18 or newer: no dependencies, no database. SIGTERM lets it finish and end.
//   KEPTWORK_SERVER=http://localhost:8321 KEPTWORK_KEY=kw_… node worker.mjs
import { randomUUID } from "node:crypto";

const { KEPTWORK_SERVER: server, KEPTWORK_KEY: secret, SINK } = process.env;
const { QUEUES = "default", LEASE = "30", AT_ONCE = "4" } = process.env;
const handlers = { // what this worker can do: a function for each kind of job
  greet: async (job) => ({ hello: job.payload.name }),
  charge: async (job) => { // a sink that honours the key has one effect, however often a job is tried
    const headers = { "Idempotency-Key": `${job.id}:charge` };
    const told = await fetch(`${SINK}?number=${job.payload.number}`, { method: "POST", headers });
    if (!told.ok) throw new Error(`the sink said ${told.status}`);
    return job.step("receipt", async () => ({ status: told.status }));
  },
};
const nap = (ms) => new Promise((done) => setTimeout(done, ms));

async function call(path, body, key) { // until there is an answer; 409 is one, too: the job is another's by now
  const headers = { Authorization: `Bearer ${secret}`, "Content-Type": "application/json" };
  if (key) headers["Idempotency-Key"] = key;
  for (let pause = 50; ; pause = Math.min(pause * 2, 2000)) {
    try {
      const asked = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(40_000) };
      const answer = await fetch(server + path, asked);
      if (answer.status < 500 && answer.status !== 429) return { code: answer.status, ...(await answer.json()) };
    } catch { /* the server is away: it is asked again */ }
    await nap(pause * (0.5 + Math.random() / 2));
  }
}

const known = { name: "node", kinds: Object.keys(handlers), queues: QUEUES.split(","), concurrency: Number(AT_ONCE) };
const { id: worker, detail } = await call("/api/workers", known, randomUUID());
if (!worker) throw new Error(`the server refuses this worker: ${detail}`);
const inHand = new Map();
let ending = false;
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => { ending = true; });

const say = (job, what, more) => call(`/api/jobs/${job.id}/${what}`, { worker, epoch: job.epoch, ...more });
async function run(job) {
  job.step = async (name, work) => { // done once: what an earlier run has kept is returned instead
    const before = job.checkpoints.find((one) => one.name === name);
    return before ? before.value : (await say(job, "checkpoint", { name, value: await work() })).value;
  };
  try {
    const result = await handlers[job.kind](job);
    await say(job, "succeed", { result });
  } catch (error) {
    await say(job, "fail", { error: { type: error.name, message: String(error.message) } });
  }
  inHand.delete(job.id);
}

const beat = setInterval(async () => { // renews the leases of what is in hand, and hears what is wanted of it
  const jobs = [...inHand.values()].map((job) => ({ job: job.id, epoch: job.epoch }));
  const told = await call(`/api/workers/${worker}/heartbeat`, { jobs, lease: Number(LEASE) });
  ending ||= Boolean(told.end);
}, Number(LEASE) * 300);

while (!ending) {
  const max = Number(AT_ONCE) - inHand.size;
  if (!max) { await nap(10); continue; }
  const told = await call(`/api/workers/${worker}/claim`, { max, wait: 5, lease: Number(LEASE) }, randomUUID());
  ending ||= Boolean(told.end) || told.code >= 400;
  for (const job of told.jobs ?? []) { inHand.set(job.id, job); run(job); }
}
while (inHand.size) await nap(20);
clearInterval(beat);
await call(`/api/workers/${worker}/end`, {});
