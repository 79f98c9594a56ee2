// A stand-in for the extender: serves the page with the headers that the extender sends, and a made-up cluster that
// changes. The same seed makes the same cluster and the same changes.
//
//     node stand-in.mjs --nodes 5000 --cards 40000 --port 8080

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { gzipSync } from 'node:zlib';

export const UI = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../scheduler-extender/ui');
/** A name that no page may take for markup. Kubernetes allows no such name; an API server that is not one might. */
export const MARKUP = '<img src=x onerror="window.markup=1"><b>bold</b>';

const METRICS = [
  { name: 'cpu_busy_avg_5m', max: 0.8, share: 0.4 },
  { name: 'mem_usage_avg_5m', max: 0.9, share: 0.4 },
  { name: 'disk_usage_avg_5m', max: 0.85 },
  { name: 'cpu_busy_max_avg_1h', share: 0.2 },
];
const MODELS = [
  { model: 'NVIDIA A10', units: 24, memory: 23028 },
  { model: 'NVIDIA L40S', units: 48, memory: 46068 },
  { model: 'NVIDIA H100 80GB HBM3', units: 80, memory: 81559 },
];
const ZONES = ['west-1a', 'west-1b', 'west-1c'];
/** The pool of the nodes with cards: its limits by the positions of METRICS. */
const POOL = { name: 'gpu', max: [0.85, 0.9, 0.85, null] };
const NAMESPACES = ['ml', 'search', 'vision', 'speech', 'notebooks'];
const HINT = ' (see: kubectl plimsoll explain pod)';
const NO_CARD = `No GPU with enough free memory${HINT}`;

/** Numbers from 0 to 1 that look random (mulberry32). */
function numbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export class Cluster {
  /** `odd`: the name of some pods. `zones`: so many, of one name with numbers; without it three. */
  constructor({ nodes = 12, cards = 16, seed = 1, shadow = true, odd = MARKUP, zones = 0 } = {}) {
    this.odd = odd;
    this.zones = zones ? [...Array(zones).keys()].map(i => `zone-${i}`) : ZONES;
    /** Other replicas that gave no answer about decisions. */
    this.missing = undefined;
    /** Why the newest policy is refused. */
    this.refused = undefined;
    this.removed = [];
    this.random = numbers(seed);
    this.prefix = `seed${seed}`;
    this.version = 1;
    this.hasShadow = shadow;
    this.now = Date.parse('2026-11-26T14:00:00Z');
    this.replica = { name: 'scheduler-extender-7c9f-x2k_4f1d', program: '0.1.0', leads: true, complete: true };
    const each = cards >= nodes * 8 ? 8 : 4;
    const withCards = Math.min(nodes, Math.ceil(cards / each));
    const digits = String(nodes).length;
    this.nodes = [];
    for (let i = 0; i < nodes; i += 1) {
      const number = String(i + 1).padStart(digits, '0');
      const own = i < withCards ? Math.min(each, cards - i * each) : 0;
      this.nodes.push(this.makeNode(own > 0 ? `gpu-${number}` : `worker-${number}`, own));
    }
    this.spoilSome();
    this.decided = this.makeDecisions();
    this.waiting = this.makePending();
  }

  pick(list) {
    return list[Math.floor(this.random() * list.length)];
  }

  makeNode(name, cardCount) {
    const busy = this.random() ** 1.3;
    const model = this.pick(MODELS);
    const cards = [];
    for (let index = 0; index < cardCount; index += 1) cards.push(this.makeCard(name, index, model));
    const node = { name, cards, zone: Math.floor(this.random() * this.zones.length), unplaced: 0, backedOff: false, changed: this.version };
    node.readings = [0.08 + busy * 0.66, 0.2 + this.random() * 0.6, 0.05 + this.random() * 0.4, 0.15 + busy * 0.7]
      .map(value => Math.round(value * 1000));
    node.inFlight = [0, 0, 0, 0];
    node.readAt = this.now / 1000 - Math.floor(this.random() * 170);
    return node;
  }

  makeCard(node, index, { model, units, memory }) {
    const charges = [];
    let left = units;
    const wanted = Math.floor(this.random() * 5);
    for (let i = 0; i < wanted && left > 0; i += 1) {
      const size = Math.min(left, this.random() < 0.15 ? left : 2 ** Math.floor(this.random() * 5));
      const namespace = this.pick(NAMESPACES);
      const kind = this.pick(['train', 'infer', 'embed', 'notebook', 'batch']);
      const basis = this.random() < 0.05 ? this.pick(['chosen', 'claimed', 'unproven-claim']) : 'recorded';
      charges.push({ namespace, name: `${kind}-${Math.floor(this.random() * 90000 + 10000).toString(36)}-${i}`, units: size, cores: Math.floor((size / units) * 100), basis });
      left -= size;
    }
    if (this.random() < 0.04 && left > 2) charges.push({ namespace: '', name: '', units: 2, cores: 0, basis: 'unmanaged' });
    const held = charges.reduce((sum, charge) => sum + charge.units, 0);
    const used = this.random() < 0.95 ? Math.round((held / units) * memory * (0.5 + this.random() * 0.48)) : null;
    return { index, uuid: `GPU-${createHash('sha256').update(`${node}/${index}`).digest('hex').slice(0, 32)}`, model, units, memory, used, charges, healthy: true, closed: undefined };
  }

  /** Some nodes are over a limit, without readings, backed off; some cards are out. */
  spoilSome() {
    const n = this.nodes.length;
    const some = part => Math.max(1, Math.round(n * part));
    for (let i = 0; i < some(0.03); i += 1) this.nodes[Math.floor(this.random() * n)].readings[0] = 805 + Math.floor(this.random() * 150);
    for (let i = 0; i < some(0.06); i += 1) {
      const node = this.nodes[Math.floor(this.random() * n)];
      node.inFlight = [20 + Math.floor(this.random() * 120), 10 + Math.floor(this.random() * 60), 0, 0];
    }
    for (let i = 0; i < some(0.005); i += 1) this.nodes[n - 1 - i * 7].readings = [null, null, null, null];
    this.nodes[Math.floor(n / 2)].readings[2] = null;
    this.nodes[Math.floor(n / 3)].inFlight[0] = -60;
    const gpu = this.nodes.filter(node => node.cards.length > 0);
    if (gpu.length === 0) return;
    const more = Math.max(1, Math.round(gpu.length / 200));
    for (let i = 0; i < more; i += 1) {
      this.pick(gpu).cards[0].healthy = false;
      this.pick(gpu).cards.at(-1).closed = 'cdi';
    }
    gpu.at(-1).backedOff = true;
    gpu[Math.floor(gpu.length / 2)].unplaced = 4;
    const odd = gpu[0].cards[0];
    if (odd.charges.length === 0) odd.charges.push({ namespace: 'ml', name: 'first', units: 8, cores: 0, basis: 'recorded' });
    odd.charges[0].name = this.odd;
    odd.charges[0].basis = 'recorded';
  }

  makeDecisions() {
    const list = [];
    const gpu = this.nodes.filter(node => node.cards.length > 0);
    let at = this.now;
    for (let i = 0; i < 1000; i += 1) {
      at -= Math.floor(this.random() * 20000);
      const asks = gpu.length > 0 && this.random() < 0.6;
      const node = this.pick(asks ? gpu : this.nodes);
      const score = 40 + Math.floor(this.random() * 60);
      const accepted = Math.max(1, Math.floor((asks ? gpu.length : this.nodes.length) * (0.2 + this.random() * 0.7)));
      const kind = this.pick(['web', 'api', 'train', 'infer', 'batch']);
      const best = [1, 2, 3].slice(0, accepted - 1).map(less => ({ node: this.pick(asks ? gpu : this.nodes).name, score: Math.max(0, score - less * 7) }));
      list.push({
        pod: { namespace: this.pick(NAMESPACES), name: i === 3 ? this.odd : `${kind}-${(i * 7919 + 46656).toString(36)}`, uid: `decided-${i}` },
        workload: { kind: kind === 'train' || kind === 'batch' ? 'Job' : 'Deployment', name: kind },
        time: new Date(at).toISOString(),
        waitedSeconds: Math.floor(this.random() ** 4 * 200),
        node: node.name,
        cards: asks ? [Math.floor(this.random() * node.cards.length)] : undefined,
        asks: asks ? { units: 2 ** Math.floor(this.random() * 5), count: 1, cores: 0, exclusive: false } : undefined,
        nodes: this.nodes.length,
        accepted,
        reasons: this.reasons(this.nodes.length - accepted, asks),
        score,
        better: this.random() < 0.1 ? 1 : 0,
        best,
      });
    }
    return list;
  }

  reasons(nodes, asks) {
    const high = { reason: `Load[${METRICS[0].name}] is too high, over 0.8${HINT}`, nodes: Math.min(nodes, Math.ceil(this.nodes.length * 0.03)) };
    return [asks && { reason: NO_CARD, nodes: nodes - high.nodes }, high].filter(one => one && one.nodes > 0);
  }

  makePending() {
    const gpu = this.nodes.filter(node => node.cards.length > 0);
    const all = this.nodes.length;
    const time = new Date(this.now - 4000).toISOString();
    const pending = (namespace, name, workload, waitedSeconds, rest) => ({
      pod: { namespace, name, uid: `waits-${namespace}-${name}` }, workload, time, waitedSeconds, nodes: all, accepted: 0, reasons: [], best: [], ...rest,
    });
    const list = [];
    if (gpu.length > 0) {
      for (let i = 0; i < 9; i += 1) {
        list.push(pending('ml', `train-${i}`, { kind: 'Job', name: 'train' }, 840 - i * 30, {
          asks: { units: 20, count: 1, cores: 0, exclusive: false }, reasons: [{ reason: NO_CARD, nodes: all - 2 }, { reason: `Load[cpu_busy_avg_5m] is too high, over 0.8${HINT}`, nodes: 2 }],
          nearest: { kind: 'card', node: gpu[0].name, index: 2, free: 17 }, fitsIf: `1 GPU with 20 free: ${gpu[0].name}/2 has 17`,
        }));
      }
      list.push(pending('vision', 'finetune-0', { kind: 'StatefulSet', name: 'finetune' }, 9000, {
        asks: { units: 48, count: 4, cores: 0, exclusive: true }, reasons: [{ reason: `Too few GPU cards fit${HINT}`, nodes: all }], nearest: { kind: 'cards', node: gpu[0].name, fit: 1 },
      }));
      list.push(pending('ml', 'big', undefined, 30, { asks: { units: 80, count: 16, cores: 0, exclusive: true }, fault: 'asks for 16 GPUs, where no node has more than 8', nearest: { kind: 'cards', node: gpu[0].name, fit: 1 } }));
    }
    list.push(pending('search', 'web-5', { kind: 'Deployment', name: 'web' }, 1, { accepted: all - 1, reasons: this.reasons(1, false), best: [{ node: this.nodes[0].name, score: 71 }] }));
    list.push(pending('search', this.odd, { kind: 'Deployment', name: 'index' }, 75, {
      reasons: [{ reason: `Load[mem_usage_avg_5m] is too high, over 0.9${HINT}`, nodes: all }],
      nearest: { kind: 'limit', node: this.nodes[0].name, metric: 'mem_usage_avg_5m', load: 0.93, max: 0.9 },
    }));
    return list;
  }

  /** Takes a node away. */
  remove(node) {
    this.version += 1;
    this.now += 1000;
    this.nodes.splice(this.nodes.indexOf(node), 1);
    this.removed.push({ name: node.name, version: this.version });
  }

  /** One second passes: readings of some nodes are written, now and then a pod comes to a card or leaves it. */
  tick() {
    this.version += 1;
    this.now += 1000;
    const changes = Math.max(1, Math.round(this.nodes.length / 180));
    for (let i = 0; i < changes; i += 1) {
      const node = this.pick(this.nodes);
      node.changed = this.version;
      node.readAt = this.now / 1000;
      node.readings = node.readings.map(value => (value === null ? null : Math.max(0, Math.min(990, value + Math.round((this.random() - 0.5) * 60)))));
      node.inFlight[0] = this.random() < 0.3 ? Math.floor(this.random() * 60) : 0;
      if (node.cards.length > 0 && this.random() < 0.3) {
        const card = this.pick(node.cards);
        if (card.charges.length > 1) card.charges.pop();
        else if (held(card) + 4 <= card.units) card.charges.push({ namespace: 'ml', name: `new-${this.version}`, units: 4, cores: 0, basis: 'chosen' });
      }
    }
  }

  stamp() {
    return { time: new Date(this.now).toISOString(), replica: this.replica };
  }

  versionText() {
    return `${this.prefix}-${this.version}`;
  }

  limitOf(node) {
    let ratio = null;
    let limit = null;
    METRICS.forEach((metric, i) => {
      const max = maxOf(node, i);
      if (max === null || node.readings[i] === null) return;
      const load = node.readings[i] + node.inFlight[i];
      const own = Math.max(Math.round(load / max), load > max * 1000 ? 1001 : 0);
      if (ratio === null || own > ratio) [ratio, limit] = [own, i];
    });
    return [ratio, limit];
  }

  scoreOf(node) {
    const loads = node.readings.slice(0, 2).map((value, i) => (value === null ? 1000 : value + node.inFlight[i]));
    return Math.max(0, Math.round(100 - Math.max(...loads) / 10));
  }

  state(since) {
    const [prefix, number] = since?.split('-') ?? [];
    const known = prefix === this.prefix && Number(number) <= this.version;
    const changed = known ? this.nodes.filter(node => node.changed > Number(number)) : this.nodes;
    const limits = changed.map(node => this.limitOf(node));
    const cards = changed.flatMap(node => node.cards);
    const positions = test => cards.flatMap((card, i) => (test(card) ? [i] : []));
    return {
      version: this.versionText(),
      ...(known ? { since, removed: this.removed.filter(one => one.version > Number(number)).map(one => one.name) } : {}),
      ...this.stamp(),
      metrics: METRICS,
      models: MODELS.map(one => one.model),
      zones: this.zones,
      pools: this.nodes.some(node => node.cards.length) ? [POOL] : [],
      nodes: {
        name: changed.map(node => node.name),
        limitRatio: limits.map(([ratio]) => ratio),
        limit: limits.map(([, limit]) => limit),
        score: changed.map(node => this.scoreOf(node)),
        readings: METRICS.map((_, i) => changed.map(node => node.readings[i])),
        inFlight: METRICS.map((_, i) => changed.map(node => node.inFlight[i])),
        readAt: changed.map(node => (node.readings.every(value => value === null) ? null : node.readAt)),
        missing: changed.map(node => node.readings.filter(value => value === null).length),
        zone: changed.map(node => node.zone),
        pool: changed.map(node => (node.cards.length ? 0 : null)),
        cards: changed.map(node => node.cards.length),
        unplaced: changed.map(node => node.unplaced),
        backedOff: changed.map(node => node.backedOff),
      },
      cards: {
        index: cards.map(card => card.index),
        model: cards.map(card => MODELS.findIndex(one => one.model === card.model)),
        units: cards.map(card => card.units),
        held: cards.map(held),
        heldCores: cards.map(cores),
        pods: cards.map(card => card.charges.filter(charge => charge.basis !== 'unmanaged').length),
        memory: cards.map(card => card.memory),
        used: cards.map(card => (card.used === null ? null : 2 * Math.round((card.used / card.memory) * 50))),
        unhealthy: positions(card => !card.healthy),
        closed: positions(card => card.closed),
      },
    };
  }

  /** Limits and terms, with what the pod adds. */
  load(node, pod) {
    const reading = (i, cached) => (node.readings[i] === null
      ? { status: 'missing', cached }
      : { status: 'fresh', value: node.readings[i] / 1000, time: new Date(node.readAt * 1000).toISOString(), ageSeconds: this.now / 1000 - node.readAt, windowSeconds: 300, cached });
    const part = i => ({ reading: reading(i, false), inFlight: node.inFlight[i] / 1000, pod });
    return {
      limits: METRICS.flatMap((metric, i) => (maxOf(node, i) === null ? [] : [{
        metric: metric.name, max: maxOf(node, i), ...part(i),
        outcome: node.readings[i] === null ? 'unknown' : (node.readings[i] + node.inFlight[i]) / 1000 + pod > maxOf(node, i) ? 'exceeded' : 'met',
      }])),
      terms: METRICS.flatMap((metric, i) => (metric.share === undefined ? [] : [{
        metric: metric.name, share: metric.share, ...part(i), points: Math.max(0, metric.share * (100 - (node.readings[i] ?? 1000) / 10)),
      }])),
      score: this.scoreOf(node),
    };
  }

  node(name) {
    const node = this.nodes.find(one => one.name === name);
    if (!node) return null;
    return {
      ...this.stamp(), name, pool: node.cards.length ? POOL.name : undefined, load: this.load(node, 0), recentPods: node.inFlight[0] > 0 ? 2 : 0,
      requestedCpu: 14.5, cpu: 32, memory: 135e9, backedOff: node.backedOff || undefined, cards: node.cards.map(detail),
    };
  }

  allCards() {
    return { ...this.stamp(), nodes: this.nodes.filter(node => node.cards.length).map(node => ({ name: node.name, cards: node.cards.map(detail) })) };
  }

  capacity({ sizes }) {
    const cards = this.allCards().nodes.flatMap(node => node.cards).filter(card => card.healthy && !card.closed);
    const freeUnits = cards.reduce((sum, card) => sum + card.free, 0);
    return sizes.map(size => ({
      ...this.stamp(), size, count: 1, cores: 0, models: [], leftOut: 0,
      total: { model: 'all', cards: cards.length, freeUnits, pods: cards.reduce((sum, card) => sum + Math.floor(card.free / size), 0), largest: 0 },
    }));
  }

  decisions(limit) {
    return { ...this.stamp(), missing: this.missing, decisions: [...this.waiting, ...this.decided].slice(0, limit) };
  }

  pending() {
    return { ...this.stamp(), missing: this.missing, decisions: this.waiting };
  }

  explain({ namespace, name, uid, fresh, nodeNames }) {
    const decided = [...this.waiting, ...this.decided].find(({ pod }) => pod.namespace === namespace && pod.name === name && (uid === undefined || pod.uid === uid));
    if (!decided) return null;
    const wanted = nodeNames ? this.nodes.filter(node => nodeNames.includes(node.name)) : this.nodes;
    return {
      pod: decided.pod, time: fresh ? new Date(this.now).toISOString() : decided.time, basis: fresh ? 'now' : 'decision', node: decided.node, fault: decided.fault,
      estimate: { cpu: { amount: 1.7, source: 'request' }, memory: { amount: 209715200, source: 'learned' } },
      nodes: wanted.map(node => this.verdict(node, decided, !fresh && decided.accepted === 0)),
    };
  }

  /** `full`: as it was when no node took the pod. */
  verdict(node, { asks, node: own, nearest }, full) {
    const load = this.load(node, 0.02);
    for (const limit of load.limits) {
      if (!full || limit.metric !== nearest.metric || limit.reading.value === undefined) continue;
      limit.reading.value = Math.max(limit.reading.value, 0.91);
      limit.outcome = 'exceeded';
    }
    const cards = asks && node.cards.map(card => {
      const free = full ? Math.min(card.units - held(card), Math.max(0, asks.units - 3)) : card.units - held(card);
      const outcome = !card.healthy ? 'unhealthy' : card.closed ? 'closed' : asks.exclusive && card.charges.length ? 'in-use' : free >= asks.units ? 'fits' : 'too-little-free';
      return { index: card.index, uuid: card.uuid, model: card.model, units: card.units, free, freeCores: 100 - cores(card), outcome, closed: card.closed,
        charges: card.charges.map(charge => ({ pod: charge.namespace ? `uid-of-${charge.name}` : '', units: charge.units, cores: charge.cores, basis: charge.basis })) };
    });
    const fitting = cards?.filter(card => card.outcome === 'fits') ?? [];
    const chosen = asks && fitting.length >= asks.count ? fitting.slice(0, asks.count).map(card => card.index) : [];
    const reasons = [];
    if (asks && chosen.length === 0) reasons.push(NO_CARD);
    for (const limit of load.limits) if (limit.outcome === 'exceeded') reasons.push(`Load[${limit.metric}] is too high, over ${limit.max}${HINT}`);
    return {
      name: node.name, known: true, accepted: node.name === own || reasons.length === 0, reasons: node.name === own ? [] : reasons, score: load.score, extenderScore: load.score, load,
      cards: asks && { asked: asks.units, exclusive: asks.exclusive || undefined, count: asks.count, chosen, cards, score: chosen.length ? 50 : 0, cost: -250000 },
    };
  }

  shadow() {
    if (!this.hasShadow) return null;
    return {
      time: new Date(this.now).toISOString(),
      missing: this.missing,
      pods: this.decided.slice(0, 200).map((decided, i) => ({
        pod: decided.pod, time: decided.time, node: decided.node, nodes: decided.nodes,
        policy: { rejected: decided.nodes - decided.accepted, rejectedAlone: 0, bestNodes: 1, best: [decided.node], bestScore: decided.score },
        shadow: i % 9 ? { rejected: decided.nodes - decided.accepted, rejectedAlone: 0, bestNodes: 2, best: [decided.node, decided.node], bestScore: decided.score }
          : { rejected: decided.nodes, rejectedAlone: decided.accepted, bestNodes: 0, best: [] },
        differs: i % 9 ? [] : ['filter', 'score'],
      })),
    };
  }

  policy() {
    const metric = one => ({ name: one.name, period: '3m', maxAge: '8m', limit: one.max, weight: one.share, whenStale: 'penalise', whenMissing: 'ignore' });
    return {
      valid: true, refused: this.refused,
      policy: {
        apiVersion: 'plimsoll.dev/v1alpha1', kind: 'SchedulingPolicy', spec: {
          metrics: METRICS.map(metric), scoring: { model: 'aboveTypical', direction: 'spread', scale: 30 },
          limits: { mode: 'soft', exemptPriorityClasses: ['system-node-critical'] }, estimates: { enabled: true, learned: true }, demand: {},
          hotValue: [{ timeRange: '1m', count: 2 }], nodePools: [{ name: POOL.name, selector: 'pool=gpu', metrics: METRICS.map((one, i) => ({ name: one.name, limit: POOL.max[i] ?? 'none' })) }],
          namespaces: [{ names: ['ml'], nodeSelector: 'pool=gpu' }], gpu: { placement: 'least-fragmentation', unmanagedMemory: 'count', beyondUnits: [{ namespaces: ['ml'], allow: ['exclusive'] }] },
        },
      },
      warnings: ['metric disk_usage_avg_5m has a limit and no weight: it counts in no score'],
    };
  }
}

/** The limit of a metric on a node; null without one. */
function maxOf(node, i) {
  return (node.cards.length ? POOL.max[i] : METRICS[i].max) ?? null;
}

function held(card) {
  return card.charges.reduce((sum, charge) => sum + charge.units, 0);
}

function cores(card) {
  return Math.min(100, card.charges.reduce((sum, charge) => sum + charge.cores, 0));
}

function detail(card) {
  return { index: card.index, uuid: card.uuid, model: card.model, units: card.units, free: card.units - held(card), freeCores: 100 - cores(card), memory: card.memory,
    used: card.used ?? undefined, healthy: card.healthy, closed: card.closed, charges: card.charges };
}

/** The hash of the inline import map, as the Content-Security-Policy names it. */
export function importMapHash(page) {
  const scripts = [...page.matchAll(/<script\b([^>]*)>([^<]*)<\/script>/g)].filter(([, attributes]) => !attributes.includes('src='));
  if (scripts.length !== 1 || !scripts[0][1].includes('type="importmap"')) throw new Error('the page has not exactly one inline script, its import map');
  return `sha256-${createHash('sha256').update(scripts[0][2]).digest('base64')}`;
}

const TYPES = { '.html': 'text/html; charset=utf-8', '.css': 'text/css; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.mjs': 'text/javascript; charset=utf-8' };

/** Serves a cluster. `fail`: a status that every request gets instead of an answer; 0 for none. */
export class StandIn {
  constructor(cluster, { port = 0, ticking = true } = {}) {
    this.cluster = cluster;
    this.port = port;
    this.ticking = ticking;
    this.fail = 0;
    this.requests = [];
  }

  async start() {
    this.server = createServer((request, answer) => this.answer(request, answer));
    await new Promise((resolve, reject) => {
      this.server.once('error', reject);
      this.server.listen(this.port, '127.0.0.1', resolve);
    });
    this.port = this.server.address().port;
    if (this.ticking) this.timer = setInterval(() => this.cluster.tick(), 1000);
    return `http://127.0.0.1:${this.port}/ui/`;
  }

  async stop() {
    clearInterval(this.timer);
    this.server.closeAllConnections();
    await new Promise(resolve => this.server.close(resolve));
  }

  async answer(request, answer) {
    const url = new URL(request.url, 'http://stand-in');
    this.requests.push(url.pathname + url.search);
    let body = '';
    for await (const part of request) body += part;
    if (this.fail) return send(request, answer, this.fail, 'text/plain', 'down on purpose');
    if (url.pathname.startsWith('/ui/')) return this.file(request, answer, url.pathname.slice(4) || 'index.html');
    const found = this.json(request.method, url, body);
    if (found === undefined || found === null) return send(request, answer, 404, 'text/plain', 'not found');
    if (found === 'unchanged') return answer.writeHead(304).end();
    return send(request, answer, 200, 'application/json', JSON.stringify(found));
  }

  json(method, { pathname, searchParams }, body) {
    const { cluster } = this;
    if (method === 'POST') {
      const answers = { '/explain': 'explain', '/v1/capacity': 'capacity' };
      return answers[pathname] ? cluster[answers[pathname]](JSON.parse(body)) : null;
    }
    if (pathname === '/v1/state') {
      const since = searchParams.get('since') ?? undefined;
      return since === cluster.versionText() ? 'unchanged' : cluster.state(since);
    }
    if (pathname.startsWith('/v1/nodes/')) return cluster.node(decodeURIComponent(pathname.slice(10)));
    switch (pathname) {
      case '/v1/cards': return cluster.allCards();
      case '/v1/decisions': return cluster.decisions(Number(searchParams.get('limit') ?? 100));
      case '/v1/pending': return cluster.pending();
      case '/v1/policy': return cluster.policy();
      case '/shadow': return cluster.shadow();
      default: return null;
    }
  }

  file(request, answer, name) {
    const type = TYPES[path.extname(name)];
    if (!type || name.includes('..')) return send(request, answer, 404, 'text/plain', 'not found');
    let text;
    try {
      text = readFileSync(path.join(UI, name));
    } catch {
      return send(request, answer, 404, 'text/plain', 'not found');
    }
    const policy = `default-src 'none'; script-src 'self' '${importMapHash(readFileSync(path.join(UI, 'index.html'), 'utf8'))}'; style-src 'self'; `
      + "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    return send(request, answer, 200, type, text, { 'Content-Security-Policy': policy, 'X-Content-Type-Options': 'nosniff', 'Referrer-Policy': 'no-referrer', 'Cache-Control': 'no-cache' });
  }
}

function send(request, answer, status, type, body, headers = {}) {
  const packed = /\bgzip\b/.test(request.headers['accept-encoding'] ?? '') ? gzipSync(body) : null;
  answer.writeHead(status, { 'Content-Type': type, ...(packed ? { 'Content-Encoding': 'gzip' } : {}), ...headers });
  answer.end(packed ?? body);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { nodes: { type: 'string', default: '12' }, cards: { type: 'string', default: '16' }, seed: { type: 'string', default: '1' }, port: { type: 'string', default: '8080' } } });
  const cluster = new Cluster({ nodes: Number(values.nodes), cards: Number(values.cards), seed: Number(values.seed) });
  console.log(await new StandIn(cluster, { port: Number(values.port) }).start());
}
