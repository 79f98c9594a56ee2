// What can colour a node, the ten steps of the colour scale, and what still fits on GPUs. Nothing here has effects.

import { counted, percent, share } from './elements.js';

/** Codes of cells: 0 to 9 are tenths, then what is over, and what is unknown. From 12 on tenths, partly unknown. */
export const OVER = 10;
export const UNKNOWN = 11;
export const PARTLY = 12;

/** The code of a value, where 1 is the limit, or full. */
export function codeOf(value, partly) {
  if (value === null) return UNKNOWN;
  if (value > 1) return OVER;
  return Math.max(0, Math.min(9, Math.floor(value * 10))) + (partly ? PARTLY : 0);
}

export function kindOf(code) {
  return Math.min(code, PARTLY);
}

/** How many cells have each kind of code. */
export function countCodes(codes) {
  const counts = new Array(13).fill(0);
  for (const code of codes) counts[kindOf(code)] += 1;
  return counts;
}

/** The load by one metric, with pods in flight, in thousandths of the node; null without a fresh reading. */
export function loadOf(row, i) {
  return row.readings[i] === null ? null : row.readings[i] + row.inFlight[i];
}

/** The limit of a node's metric, in thousandths: that of its pool, if it is in one. Null without a limit. */
export function limitOf(cluster, row, i) {
  const max = row.pool === undefined ? cluster.metrics[i].max : cluster.pools.get(row.pool)?.[i];
  return max === undefined || max === null ? null : max * 1000;
}

/** The load by one metric: 1 is its limit, or the node where it has none. The nearest limit's is the extender's. */
function ratioOf(cluster, row, i) {
  if (row.limit === cluster.metrics[i].name) return row.limitRatio / 1000;
  const load = loadOf(row, i);
  return load === null ? null : load / (limitOf(cluster, row, i) ?? 1000);
}

export function isOver(cluster, row, i) {
  return limitOf(cluster, row, i) !== null && ratioOf(cluster, row, i) > 1;
}

/** The load by the nearest limit; "≥" where the reading of another is missing. */
export function limitRatio(cluster, row) {
  return (isPartly(cluster, row) ? '≥ ' : '') + percent(row.limitRatio);
}

function isPartly(cluster, row) {
  return row.limitRatio !== null && row.readings.some((reading, i) => reading === null && limitOf(cluster, row, i) !== null);
}

/**
 * All measures. `value` of a row: 1 is the limit, or full; null if unknown. `partly`: whether a part of it is unknown.
 * `over`, `absent`: these codes in words.
 */
export function measures(cluster) {
  const list = [{
    key: 'limit',
    group: 'Load',
    label: 'Limit ratio',
    legend: 'Load divided by the limit that is nearest, with pods in flight. Over 100% a node is overloaded.',
    over: 'over its limit',
    absent: 'no reading',
    value: row => (row.limitRatio === null ? null : row.limitRatio / 1000),
    partly: row => isPartly(cluster, row),
    text: row => (row.limitRatio === null ? 'no reading' : `${limitRatio(cluster, row)} of the limit of ${row.limit}`),
  }];
  cluster.metrics.forEach((metric, i) => list.push(ofMetric(cluster, metric, i)));
  if (cluster.cards > 0) {
    list.push(
      ofCards('held', 'GPU units held', 'Units that pods hold, of all units of the node’s GPUs.',
        card => card.held, card => card.units),
      ofCards('used', 'GPU memory in use', 'Memory in use as last measured, of the memory of the measured GPUs.',
        card => card.used, card => card.memory),
    );
    for (const size of sizes(cluster.nodes).slice(1)) list.push(ofStranded(size));
  }
  return list;
}

function ofMetric(cluster, { name, max }, i) {
  const limits = [max !== undefined && percent(max * 1000), cluster.pools.size > 0 && 'that of the node’s pool'].filter(Boolean).join(' or ');
  return {
    key: name,
    group: 'Load',
    label: limits ? `${name} of its limit` : name,
    legend: `The reading of ${name} with pods in flight, ${limits ? `divided by its limit: ${limits}.` : 'of the whole node. It has no limit.'}`,
    over: limits ? 'over its limit' : 'over 100%',
    absent: 'no fresh reading',
    value: row => ratioOf(cluster, row, i),
    text: row => loadText(cluster, row, i),
  };
}

/** "52%, 4% of it in flight, limit 65%". */
export function loadText(cluster, row, i) {
  const max = limitOf(cluster, row, i);
  const load = loadOf(row, i);
  if (load === null) return 'no fresh reading';
  const flight = row.inFlight[i];
  const parts = [percent(load)];
  if (flight > 0) parts.push(`${percent(flight)} of it in flight`);
  if (flight < 0) parts.push(`${percent(-flight)} taken off for ended pods`);
  if (max !== null) parts.push(`limit ${percent(max)}`);
  return parts.join(', ');
}

function ofCards(key, label, legend, part, of) {
  const known = row => row.cards.filter(card => part(card) !== null);
  const sum = (row, number) => known(row).reduce((all, card) => all + number(card), 0);
  const value = row => (sum(row, of) ? sum(row, part) / sum(row, of) : null);
  const absent = key === 'used' ? 'not measured' : 'no GPUs';
  return {
    key,
    group: 'GPUs',
    label,
    legend,
    over: 'over 100%',
    absent,
    value,
    partly: row => known(row).length < row.cards.length,
    text: row => (value(row) === null ? absent : `${share(value(row))} of ${counted(known(row).length, 'GPU')}`),
  };
}

function ofStranded(size) {
  const units = row => row.cards.reduce((sum, card) => sum + card.units, 0);
  return {
    key: `stranded-${size}`,
    group: 'Stranded',
    label: `Stranded for pods of ${counted(size, 'unit')}`,
    legend: `Free units on open GPUs that pods of ${counted(size, 'unit')} cannot use, of all units of the node.`,
    over: 'over 100%',
    absent: 'no GPUs',
    value: row => (units(row) ? fit(row, size).stranded / units(row) : null),
    text: row => (row.cards.length ? `${counted(fit(row, size).stranded, 'unit')} stranded` : 'no GPUs'),
  };
}

/** Whether pods can be placed on the card now. */
export function isOpen(node, card) {
  return card.units > 0 && !card.unhealthy && !card.closed && !node.backedOff;
}

export function freeUnits(card) {
  return Math.max(0, card.units - card.held);
}

/**
 * How many pods of `size` units the free units of a node are enough for, and how many units of its open GPUs they
 * cannot use (stranded). Unplaced units count once. How pods share cards is not looked at: the extender tells what fits.
 */
export function fit(node, size) {
  let free = -node.unplaced;
  let pods = 0;
  for (const card of node.cards) {
    if (!isOpen(node, card)) continue;
    free += freeUnits(card);
    pods += Math.floor(freeUnits(card) / size);
  }
  free = Math.max(0, free);
  pods = Math.min(pods, Math.floor(free / size));
  return { pods, stranded: free - pods * size };
}

/** As `fit`, for pods that ask for a whole GPU: it must be empty. */
export function fitWhole(node) {
  let pods = 0;
  let stranded = 0;
  for (const card of node.cards) {
    if (!isOpen(node, card)) continue;
    if (card.held === 0 && card.heldCores === 0 && card.pods === 0) pods += 1;
    else stranded += freeUnits(card);
  }
  return { pods, stranded };
}

/** Sizes to show: 1, 2, 4 and so on, up to the largest card. */
export function sizes(nodes) {
  let largest = 0;
  for (const node of nodes) for (const card of node.cards) largest = Math.max(largest, card.units);
  const list = [];
  for (let size = 1; size <= largest; size *= 2) list.push(size);
  return list;
}

export function capacity(nodes) {
  const sum = { cards: 0, units: 0, held: 0, cores: 0, measured: 0, used: 0, unhealthy: 0, closed: 0, backedOff: 0, unitless: 0 };
  for (const node of nodes) {
    if (node.backedOff && node.cards.length) sum.backedOff += 1;
    for (const card of node.cards) {
      sum.cards += 1;
      sum.units += card.units;
      sum.held += card.held;
      sum.cores += card.heldCores;
      if (card.used !== null) {
        sum.measured += card.memory;
        sum.used += card.used;
      }
      if (card.unhealthy) sum.unhealthy += 1;
      if (card.closed) sum.closed += 1;
      if (!card.units) sum.unitless += 1;
    }
  }
  const whole = nodes.map(fitWhole);
  const total = key => whole.reduce((all, one) => all + one[key], 0);
  sum.whole = { pods: total('pods'), stranded: total('stranded') };
  return sum;
}
