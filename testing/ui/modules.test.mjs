// The page's functions without a browser, on the API's own golden files.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { address, clock, memoryOf, memory, parseAddress, percent, reasonText, span } from '../../scheduler-extender/ui/elements.js';
import { arrange, cellAfter, cellAt, cornerOf, highest, layOut } from '../../scheduler-extender/ui/heatmap.js';
import { capacity, codeOf, countCodes, fit, fitWhole, isOver, limitOf, measures, OVER, sizes, UNKNOWN } from '../../scheduler-extender/ui/measures.js';
import { asksText, distance, grouped, matches, ranked } from '../../scheduler-extender/ui/pods.js';
import { fields, findings } from '../../scheduler-extender/ui/policy.js';
import { delay, merge } from '../../scheduler-extender/ui/state.js';
import { Cluster } from './stand-in.mjs';

function golden(name) {
  return JSON.parse(readFileSync(new URL(`../../crates/api/tests/golden/${name}.json`, import.meta.url), 'utf8'));
}

function node(cards, rest = {}) {
  return { name: 'n', zone: null, unplaced: 0, backedOff: false, cards: cards.map(card => ({ units: 24, held: 0, heldCores: 0, pods: 0, memory: 1000, used: null, unhealthy: false, closed: false, ...card })), ...rest };
}

test('a full answer becomes rows with names in place of positions', () => {
  const cluster = merge(null, golden('state'));
  assert.deepEqual(cluster.nodes.map(row => row.name), ['gpu-1', 'worker-1', 'worker-2']);
  const [gpu, worker, silent] = cluster.nodes;
  assert.equal(gpu.limit, 'cpu_usage_avg_5m');
  assert.equal(worker.limit, 'mem_usage_avg_5m');
  assert.equal(silent.limit, null);
  assert.equal(silent.limitRatio, null);
  assert.equal(gpu.zone, 'west-1a');
  assert.equal(silent.zone, null);
  assert.deepEqual(gpu.readings, [310, 220, 340]);
  assert.deepEqual(gpu.inFlight, [24, 10, 0]);
  assert.deepEqual(gpu.cards.map(card => [card.index, card.model, card.held, card.closed]), [[0, 'NVIDIA H100 80GB HBM3', 72, false], [1, 'NVIDIA H100 80GB HBM3', 0, true]]);
  assert.deepEqual(silent.cards.map(card => [card.model, card.unhealthy, card.used]), [['NVIDIA A10', true, null]]);
  assert.equal(cluster.cards, 3);
});

test('an update replaces its rows, removes what is gone and keeps the others', () => {
  const before = merge(null, golden('state'));
  const after = merge(before, golden('state-update'));
  assert.deepEqual(after.nodes.map(row => row.name), ['gpu-1', 'worker-1']);
  assert.deepEqual(after.byName.get('worker-1').readings, [650, 800, 690]);
  assert.deepEqual(after.byName.get('worker-1').inFlight, [-12, 0, 0]);
  assert.equal(after.byName.get('gpu-1'), before.byName.get('gpu-1'));
  assert.deepEqual(after.replica, golden('state-update').replica);
  assert.equal(after.cards, 2);
  assert.equal(before.nodes.length, 3, 'the cluster before is left as it was');
});

test('an update of another version is refused, and a full answer replaces everything', () => {
  const before = merge(null, golden('state'));
  assert.equal(merge({ ...before, version: 'other-1' }, golden('state-update')), null);
  assert.equal(merge(null, golden('state-update')), null);
  const { since, ...full } = golden('state-update');
  assert.deepEqual(merge(before, full).nodes.map(row => row.name), ['worker-1']);
});

test('an update with other metrics than before is refused: its rows cannot stand beside those of before', () => {
  const before = merge(null, golden('state'));
  const update = golden('state-update');
  update.metrics = [update.metrics[1], update.metrics[0], update.metrics[2]];
  assert.equal(merge(before, update), null);
});

/** The golden state with `worker-1` in a pool of its own, which has another limit of CPU and none of memory. */
function withPool() {
  const state = golden('state');
  state.pools = [{ name: 'batch', max: [0.95, null, null] }];
  state.nodes.pool = [null, 0, null];
  return state;
}

test('the limit of a node’s metric is that of its pool', () => {
  const cluster = merge(null, withPool());
  const [gpu, worker] = cluster.nodes;
  assert.deepEqual([0, 1, 2].map(i => limitOf(cluster, gpu, i)), [650, 800, null]);
  assert.deepEqual([0, 1, 2].map(i => limitOf(cluster, worker, i)), [950, null, null]);
  const cpu = measures(cluster).find(one => one.key === 'cpu_usage_avg_5m');
  assert.equal(cpu.value(worker), 702 / 950);
  assert.equal(cpu.text(worker), '70%, limit 95%');
  assert.equal(cpu.legend, 'The reading of cpu_usage_avg_5m with pods in flight, divided by its limit: 65% or that of the node’s pool.');
  assert.equal(isOver(cluster, worker, 0), false);
  assert.equal(isOver(cluster, { ...worker, pool: undefined }, 0), true, 'without the pool');
  const after = merge(cluster, { ...golden('state-update'), pools: [{ name: 'batch', max: [0.7, null, null] }] });
  assert.equal(limitOf(after, { ...worker, pool: 'batch' }, 0), 700, 'a changed limit holds for rows of before');
});

test('whether the nearest limit is exceeded is as the extender says, whose load is not rounded', () => {
  const cluster = merge(null, golden('state'));
  const row = { ...cluster.byName.get('gpu-1'), readings: [650, 220, 340], inFlight: [0, 0, 0], limit: 'cpu_usage_avg_5m' };
  const cpu = measures(cluster).find(one => one.key === 'cpu_usage_avg_5m');
  for (const [ratio, over] of [[1000, false], [1001, true]]) {
    assert.equal(isOver(cluster, { ...row, limitRatio: ratio }, 0), over);
    assert.equal(codeOf(cpu.value({ ...row, limitRatio: ratio })) === OVER, over);
  }
});

test('a node with a reading of a limit missing is partly unknown, and its limit ratio is no less than what is known', () => {
  const cluster = merge(null, withPool());
  const [limit] = measures(cluster);
  const [gpu, worker, silent] = cluster.nodes;
  const partly = row => Boolean(limit.partly(row));
  assert.deepEqual([gpu, worker, silent].map(partly), [false, false, false]);
  const half = { ...gpu, readings: [310, null, 340] };
  assert.equal(partly(half), true);
  assert.equal(limit.text(half), '≥ 51% of the limit of cpu_usage_avg_5m');
  assert.equal(partly({ ...gpu, readings: [310, 220, null] }), false, 'a metric without a limit');
  assert.equal(partly({ ...worker, readings: [702, null, 690] }), false, 'a metric without a limit in its pool');
  assert.deepEqual(countCodes([codeOf(0.04, true), codeOf(0.95, true), codeOf(1.1, true), codeOf(null, true), 3]).slice(OVER), [1, 1, 2]);
});

test('memory in use is of the cards that are measured, and partly unknown where some are not', () => {
  const cluster = merge(null, golden('state'));
  const used = measures(cluster).find(one => one.key === 'used');
  const gpu = cluster.byName.get('gpu-1');
  assert.equal(used.text(gpu), '76% of 1 GPU');
  assert.equal(used.partly(gpu), true);
  assert.equal(used.text({ ...gpu, cards: gpu.cards.slice(1) }), 'not measured');
});

test('a card without units fits no pod, and nothing of it is a part', () => {
  const none = node([{ units: 0 }]);
  assert.deepEqual(fitWhole(node([{ units: 0 }, {}])), { pods: 1, stranded: 0 });
  assert.deepEqual(fit(none, 1), { pods: 0, stranded: 0 });
  assert.equal(capacity([none]).unitless, 1);
  const cluster = { ...merge(null, golden('state')), cards: 1 };
  for (const measure of measures(cluster).slice(1 + cluster.metrics.length)) assert.equal(measure.value(none), null, measure.key);
});

test('updates of a changing cluster end where a full answer begins', () => {
  const stand = new Cluster({ nodes: 60, cards: 96, seed: 7 });
  let cluster = merge(null, stand.state());
  for (let i = 0; i < 40; i += 1) {
    stand.tick();
    cluster = merge(cluster, stand.state(cluster.version));
  }
  assert.deepEqual(cluster.nodes, merge(null, stand.state()).nodes);
});

test('pods of a size fit card by card, and the rest is stranded', () => {
  const one = node([{ held: 3 }, { held: 20 }, { held: 24 }]);
  assert.deepEqual(fit(one, 1), { pods: 25, stranded: 0 });
  assert.deepEqual(fit(one, 4), { pods: 6, stranded: 1 });
  assert.deepEqual(fit(one, 8), { pods: 2, stranded: 9 });
  assert.deepEqual(fit(one, 32), { pods: 0, stranded: 25 });
});

test('cards that take no pods neither fit nor strand', () => {
  assert.deepEqual(fit(node([{ unhealthy: true }, { closed: true }, { held: 16 }]), 8), { pods: 1, stranded: 0 });
  assert.deepEqual(fit(node([{}], { backedOff: true }), 1), { pods: 0, stranded: 0 });
});

test('units on no card yet count once on their node', () => {
  assert.deepEqual(fit(node([{ held: 16 }, { held: 16 }], { unplaced: 4 }), 8), { pods: 1, stranded: 4 });
  assert.deepEqual(fit(node([{ held: 20 }], { unplaced: 9 }), 1), { pods: 0, stranded: 0 });
});

test('a whole card must be empty', () => {
  assert.deepEqual(fitWhole(node([{}, { held: 1, pods: 1 }, { heldCores: 10 }])), { pods: 1, stranded: 47 });
});

test('a card that holds more than its units has none free', () => {
  assert.deepEqual(fit(node([{ held: 30 }, {}]), 24), { pods: 1, stranded: 0 });
});

test('sizes are powers of two up to the largest card', () => {
  assert.deepEqual(sizes([node([{}]), node([{ units: 80 }])]), [1, 2, 4, 8, 16, 32, 64]);
  const sum = capacity([node([{ held: 12, used: 500 }, { unhealthy: true }]), node([{ closed: true }], { backedOff: true })]);
  assert.deepEqual([sum.cards, sum.units, sum.held], [3, 72, 12]);
  assert.deepEqual([sum.measured, sum.used, sum.unhealthy, sum.closed, sum.backedOff], [1000, 500, 1, 1, 1]);
});

test('the code of a value is its tenth, and over begins above the limit', () => {
  assert.deepEqual([0, 0.09, 0.1, 0.999, 1, 1.001, null].map(value => codeOf(value)), [0, 0, 1, 9, 9, OVER, UNKNOWN]);
  assert.equal(codeOf(-0.2), 0);
});

test('a metric counts with its pods in flight against its limit', () => {
  const cluster = merge(null, golden('state'));
  const all = measures(cluster);
  const cpu = all.find(one => one.key === 'cpu_usage_avg_5m');
  assert.equal(cpu.value(cluster.byName.get('gpu-1')), 0.514);
  assert.equal(cpu.text(cluster.byName.get('gpu-1')), '33%, 2% of it in flight, limit 65%');
  assert.equal(cpu.value(cluster.byName.get('worker-2')), null);
  const unlimited = all.find(one => one.key === 'cpu_usage_max_avg_1h');
  assert.equal(unlimited.value(cluster.byName.get('gpu-1')), 0.34);
  assert.equal(all[0].text(cluster.byName.get('worker-1')), '110% of the limit of mem_usage_avg_5m');
  const held = all.find(one => one.key === 'held');
  assert.equal(held.value(cluster.byName.get('gpu-1')), 72 / 160);
  assert.equal(held.value(cluster.byName.get('worker-1')), null);
  const used = all.find(one => one.key === 'used');
  assert.equal(used.value(cluster.byName.get('gpu-1')), 0.76);
  assert.ok(all.some(one => one.key === 'stranded-64') && !all.some(one => one.key === 'stranded-1'));
});

test('every cell has a place, and a place has its cell', () => {
  for (const [width, counts] of [[1248, [5000]], [340, [1669, 1697, 1634]], [1248, [40000]], [340, [40000]], [100, [1]]]) {
    const layout = layOut(width, counts, counts.length > 1);
    const all = counts.reduce((sum, n) => sum + n, 0);
    assert.ok(layout.width <= width);
    for (let i = 0; i < all; i += 1) {
      const { x, y } = cornerOf(layout, i);
      assert.equal(cellAt(layout, x, y), i);
      assert.equal(cellAt(layout, x + layout.size - 1, y + layout.size - 1), i);
      assert.ok(y + layout.size <= layout.height);
    }
    assert.equal(cellAt(layout, -1, 0), -1);
    assert.equal(cellAt(layout, 0, layout.height), -1);
  }
});

test('arrow keys reach the rows of the next group', () => {
  const layout = layOut(100, [7, 8], true, 100);
  assert.equal(layout.columns, 4);
  assert.ok(cornerOf(layout, 0).y >= 18 && cornerOf(layout, 7).y >= cornerOf(layout, 6).y + layout.size + 18, 'room for the groups’ names');
  assert.equal(cellAfter(layout, 0, 'ArrowRight'), 1);
  assert.equal(cellAfter(layout, 0, 'ArrowLeft'), 0);
  assert.equal(cellAfter(layout, 1, 'ArrowDown'), 5);
  assert.equal(cellAfter(layout, 3, 'ArrowDown'), 10, 'the last row of the first group is shorter');
  assert.equal(cellAfter(layout, 6, 'ArrowDown'), 9);
  assert.equal(cellAfter(layout, 7, 'ArrowUp'), 4);
  assert.equal(cellAfter(layout, 11, 'ArrowDown'), 11);
  assert.equal(cellAfter(layout, 14, 'ArrowRight'), 14);
  assert.equal(cellAfter(layout, 0, 'ArrowUp'), 0);
  assert.equal(cellAfter(layout, 3, 'Home'), 0);
  assert.equal(cellAfter(layout, 3, 'End'), 14);
  assert.equal(cellAfter(layout, 3, 'a'), null);
});

test('groups come by name with their items in order', () => {
  const { list, groups } = arrange(['b2', 'a1', 'b1'], item => item[0], true);
  assert.deepEqual(list, ['a1', 'b2', 'b1']);
  assert.deepEqual(groups, [{ label: 'a', count: 1 }, { label: 'b', count: 2 }]);
});

test('the highest values come first, of equal ones the first, and unknown ones last', () => {
  const values = [0.5, null, 0.9, 0.5, 1.2, 0.5];
  const all = [0, 1, 2, 3, 4, 5];
  assert.deepEqual(highest(values, all, 3), [4, 2, 0]);
  assert.deepEqual(highest(values, all, 9), [4, 2, 0, 3, 5, 1]);
  assert.deepEqual(highest(values, [1, 3, 5], 2), [3, 5]);
  assert.deepEqual(highest(values, [], 5), []);
});

test('a pending pod says what it asks for', () => {
  const [card, placed, , never] = golden('decisions').decisions;
  assert.equal(asksText(card.asks), '20 units');
  assert.equal(asksText(placed.asks), '32 units with 25% of compute');
  assert.equal(asksText(never.asks), '8 whole GPUs');
});

test('pending pods are grouped by workload, the longest wait first', () => {
  const one = golden('decisions').decisions[0];
  const later = { ...one, pod: { ...one.pod, name: 'train-8', uid: 'x' }, waitedSeconds: 900 };
  const alone = { ...one, workload: undefined, pod: { ...one.pod, name: 'alone', uid: 'y' }, waitedSeconds: 2000 };
  const groups = grouped([one, later, alone], Date.parse(one.time) / 1000 + 10);
  assert.deepEqual(groups.map(([, pods]) => pods.map(one => one.pod.name)), [['alone'], ['train-8', 'train-9']]);
  assert.equal(groups[0][1][0].waits, 2010);
});

test('decisions are found by pod, node, runner-up, workload and reason', () => {
  const [, placed] = golden('decisions').decisions;
  for (const text of ['ml/infer-3', 'GPU-1', 'gpu-7', 'Deployment/infer', 'free memory', '']) assert.ok(matches(placed, text), text);
  assert.ok(!matches(placed, 'web-0'));
});

test('an explanation has the pod’s node first, then accepted nodes by score, then the nearest misses', () => {
  const explanation = golden('explain');
  assert.deepEqual(ranked(explanation).map(one => one.name), ['worker-2', 'worker-1']);
  const rejected = (name, load) => ({ name, accepted: false, score: 0, reasons: [], load: { limits: [{ max: 0.8, outcome: 'exceeded', reading: { value: load } }] } });
  const nodes = [rejected('far', 0.95), { name: 'good', accepted: true, score: 60 }, rejected('near', 0.81), { name: 'best', accepted: true, score: 70 }];
  assert.deepEqual(ranked({ nodes }).map(one => one.name), ['best', 'good', 'near', 'far']);
  assert.ok(distance(explanation.nodes[0]) > 10, 'a node without cards is far from a pod that asks for some');
});

test('health finds what is out', () => {
  const counts = findings(merge(null, golden('state'))).map(([title, , list]) => [title, list.length]);
  assert.deepEqual(counts, [['Over a limit', 1], ['Without any reading', 1], ['With readings missing or stale', 0], ['Backed off', 1], ['Unhealthy GPUs', 1], ['Closed GPUs', 1], ['Units on no GPU yet', 1]]);
});

test('each field of a policy is shown, whatever its name', () => {
  const spec = { metrics: [{ limit: 0.8, name: 'cpu' }], scoring: { model: 'aboveTypical', scale: 30 }, limits: { classes: ['a', 'b'], wait: null }, hotValue: [] };
  assert.deepEqual(fields(spec), { facts: [['scoring.model', 'aboveTypical'], ['scoring.scale', '30'], ['limits.classes', 'a, b']], lists: [['metrics', spec.metrics]] });
});

test('numbers, spans, names and addresses', () => {
  assert.deepEqual([0, 4, 655, 1003, 1000, null].map(percent), ['0%', '0%', '66%', '100.3%', '100%', '–']);
  assert.deepEqual([0, 119, 120, 3600, 7500, 90000].map(span), ['0 s', '119 s', '2 min', '1 h', '2 h 5 min', '1 d 1 h']);
  assert.deepEqual([512, 81559].map(memory), ['512 MiB', '79.6 GiB']);
  assert.equal(memoryOf(61440, 81559), '60 of 79.6 GiB');
  assert.equal(reasonText('Load[x] is too high, over 0.8 (see: kubectl plimsoll explain pod)'), 'Load[x] is too high, over 0.8');
  const { parts, settings } = parseAddress(`${address('pod', 'a/b', '<b>?')}?find=x%20y`);
  assert.deepEqual(parts, ['pod', 'a/b', '<b>?']);
  assert.equal(settings.get('find'), 'x y');
  assert.deepEqual(parseAddress('#/node/%E0%A4%A').parts, ['node', '%E0%A4%A']);
  assert.equal(address('pod', 'ml', 'train-0', undefined), '#/pod/ml/train-0');
});

test('a time has its date if it is not of today', () => {
  const now = new Date();
  const noon = days => new Date(now.getFullYear(), now.getMonth(), now.getDate() - days, 12, 30, 5);
  assert.equal(clock(noon(0)), '12:30:05');
  const day = noon(2).toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  assert.equal(clock(noon(2)), `${day}, 12:30:05`);
  assert.match(day, /^\d+ [A-Z][a-z]+$/);
});

test('tries become rarer after failures, up to 30 s', () => {
  assert.deepEqual([0, 1, 2, 3, 4, 9].map(failures => delay(2000, failures)), [2000, 4000, 8000, 16000, 30000, 30000]);
});
