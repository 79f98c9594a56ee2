// The cluster as the page keeps it, rows by node, read from the columns of `GET /v1/state`. And asking the extender:
// again and again while the page is visible, more rarely after failures.

import { useEffect, useState } from 'preact/hooks';

const STATE_PERIOD = 2000;
const LONGEST_PERIOD = 30000;
const PATIENCE = 20000;

/** The cluster by an answer of `/v1/state`. Null if it adds to another version or other metrics: ask for everything. */
export function merge(previous, answer) {
  const added = answer.since !== undefined;
  if (added && (previous?.version !== answer.since || namesOf(previous) !== namesOf(answer))) return null;
  const byName = new Map(added ? previous.byName : []);
  for (const name of answer.removed ?? []) byName.delete(name);
  for (const row of rows(answer)) byName.set(row.name, row);
  const nodes = [...byName.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  return {
    version: answer.version,
    /** The server's, in seconds since 1970: ages are counted from it. */
    time: Date.parse(answer.time) / 1000,
    replica: answer.replica,
    metrics: answer.metrics,
    /** The limits of each pool, by the positions of `metrics`. */
    pools: new Map(answer.pools?.map(pool => [pool.name, pool.max])),
    nodes,
    byName,
    cards: nodes.reduce((sum, row) => sum + row.cards.length, 0),
  };
}

function namesOf({ metrics }) {
  return metrics.map(metric => metric.name).join();
}

const NODE = ['name', 'limitRatio', 'score', 'readAt', 'missing', 'unplaced', 'backedOff'];
const CARD = ['index', 'units', 'held', 'heldCores', 'pods', 'memory', 'used'];

/** The rows of an answer. Positions in its lists become names, since the next answer's lists can differ. */
function rows(answer) {
  const { nodes, cards } = answer;
  const unhealthy = new Set(cards.unhealthy);
  const closed = new Set(cards.closed);
  let next = 0;
  return nodes.name.map((_, i) => {
    const row = {};
    for (const column of NODE) row[column] = nodes[column][i];
    row.limit = answer.metrics[nodes.limit[i]]?.name ?? null;
    row.zone = answer.zones[nodes.zone[i]] ?? null;
    row.pool = answer.pools?.[nodes.pool?.[i]]?.name;
    row.readings = nodes.readings.map(column => column[i]);
    row.inFlight = nodes.inFlight.map(column => column[i]);
    row.cards = [];
    for (const end = next + nodes.cards[i]; next < end; next += 1) {
      const card = { node: row.name };
      for (const column of CARD) card[column] = cards[column][next];
      card.name = `${row.name}/${card.index}`;
      if (card.used !== null) card.used *= card.memory / 100;
      card.model = answer.models[cards.model[next]];
      card.unhealthy = unhealthy.has(next);
      card.closed = closed.has(next);
      row.cards.push(card);
    }
    return row;
  });
}

/** The JSON of an answer; null if nothing has changed. Fails with the status of another answer. Paths are below the page's folder's. */
export async function ask(path, signal, init = {}) {
  const answer = await fetch(`..${path}`, { cache: 'no-cache', ...init, signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]) });
  if (answer.status === 304) return null;
  if (!answer.ok) {
    const text = (await answer.text()).trim().replace(/^"|"$/g, '').slice(0, 300);
    throw Object.assign(new Error(`${answer.status}${text && `: ${text}`}`), { status: answer.status });
  }
  return answer.json();
}

/** How long to wait after this many failures in a row, in milliseconds. */
export function delay(period, failures) {
  return Math.min(LONGEST_PERIOD, period * 2 ** failures);
}

/** Calls `once` now and each `period` while the page is visible. `failed` gets the error and when it tries again. */
export function follow(once, period, failed) {
  const stop = new AbortController();
  let timer = 0;
  let failures = 0;
  let busy = false;

  async function run() {
    clearTimeout(timer);
    if (busy || document.hidden || stop.signal.aborted) return;
    busy = true;
    try {
      await once(stop.signal);
      failures = 0;
    } catch (error) {
      failures += 1;
      if (!stop.signal.aborted) failed(error, Date.now() + delay(period, failures));
    }
    busy = false;
    clearTimeout(timer);
    timer = setTimeout(run, delay(period, failures));
  }

  function wake() {
    if (!document.hidden) run();
  }
  document.addEventListener('visibilitychange', wake);
  run();
  return {
    now: run,
    stop() {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', wake);
    },
  };
}

/** The cluster, kept up to date. `at`: when the last answer came. `error`, `retry`: of a failure since. */
export function useCluster() {
  const [shown, setShown] = useState({ cluster: null, at: null, error: null, retry: null });
  const [follower, setFollower] = useState(null);
  useEffect(() => {
    let cluster = null;
    let at = null;
    async function once(signal) {
      const asked = since => ask(`/v1/state${since}`, signal, { cache: 'no-store' });
      const answer = await asked(cluster ? `?since=${encodeURIComponent(cluster.version)}` : '');
      // Where nothing has changed, readings grow older all the same.
      cluster = answer === null ? { ...cluster, time: cluster.time + (Date.now() - at) / 1000 }
        : merge(cluster, answer) ?? merge(null, await asked(''));
      at = Date.now();
      setShown({ cluster, at, error: null, retry: null });
    }
    const following = follow(once, STATE_PERIOD, (error, retry) => {
      setShown(before => ({ ...before, error, retry }));
    });
    setFollower(following);
    return following.stop;
  }, []);
  return { ...shown, now: follower?.now };
}

/** The answer of another path, each `seconds` while it is shown, to `body` if there is one. `at`: when it came. After a 404 there is none. */
export function useAnswer(path, seconds, body) {
  const [shown, setShown] = useState({ answer: null });
  useEffect(() => follow(async signal => {
    const answer = await ask(path, signal, body && { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
    setShown(before => ({ answer: answer ?? before.answer, at: Date.now() }));
  }, seconds * 1000, error => setShown(({ answer, at }) => ({ answer: error.status === 404 ? null : answer, at, error }))).stop, [body]);
  return shown;
}
