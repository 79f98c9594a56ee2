// What the page does, in Chromium against the stand-in: it follows changes, loses and finds its server, obeys the
// keyboard, tells screen readers what a colour says, and never takes a name for markup.

import assert from 'node:assert/strict';
import { after, before, test as anyTest } from 'node:test';
import { coloursOf, openPage, startChromium } from './browser.mjs';
import { scaleLuminances } from './checks.mjs';
import { Cluster, MARKUP, StandIn } from './stand-in.mjs';

let browser;
before(async () => { browser = await startChromium(); });
after(() => browser?.close());

/** These tests change the cluster as they need it, so that an extender of PLIMSOLL_UI will not do. */
function test(name, run) {
  anyTest(name, { skip: process.env.PLIMSOLL_UI ? 'needs the stand-in' : false }, run);
}

/** A page on a cluster that changes only when it is told to. */
async function openOn(t, options, view = {}) {
  const standIn = new StandIn(new Cluster(options), { ticking: false });
  const base = await standIn.start();
  t.after(() => standIn.stop());
  const opened = await openPage(browser, base, view);
  t.after(() => opened.page.context().close());
  return { ...opened, standIn, base, cluster: standIn.cluster };
}

/** Changes a node as the extender would: with a new version. */
function change(cluster, node, edit) {
  cluster.version += 1;
  cluster.now += 1000;
  edit(node);
  node.changed = cluster.version;
}

test('a changed reading shows without a reload, in rows', async t => {
  const { page, cluster, standIn, close } = await openOn(t, { nodes: 12, cards: 24 });
  const node = cluster.nodes[7];
  change(cluster, node, one => { one.readings[0] = 777; one.inFlight[0] = 0; });
  const row = page.locator('tbody tr', { has: page.getByRole('link', { name: node.name, exact: true }) });
  await row.getByText(/^78%/).waitFor();
  change(cluster, node, one => { one.readings[0] = 790; one.inFlight[0] = 60; });
  await row.getByText('over its limit: ').waitFor({ state: 'attached' });
  assert.equal(await row.locator('.flight').count() > 0, true, 'the in-flight part is shown');
  assert.equal(standIn.requests.filter(path => path === '/v1/state').length, 1, 'all nodes are asked for once');
  await close();
});

test('a changed node shows in the heat map, and is found by a part of its name', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 500, cards: 4000 });
  const over = page.getByRole('button', { name: /^over its limit: / });
  const number = async () => Number((await over.getAttribute('aria-label')).match(/: (\d+) node/)[1]);
  const before = await number();
  const calm = cluster.nodes.find(node => node.readings[0] !== null && node.readings[0] < 300 && node.readings[1] < 700);
  change(cluster, calm, one => { one.readings[0] = 950; });
  await page.getByRole('button', { name: `over its limit: ${before + 1} nodes` }).waitFor();
  await page.getByLabel('Find').fill(calm.name.toUpperCase());
  await page.getByRole('heading', { name: '1 node' }).waitFor();
  assert.match(await page.locator('main table').innerText(), new RegExp(calm.name));
  assert.match(page.url(), new RegExp(`find=${calm.name.toUpperCase()}`), 'what is looked for can be shared');
  await close();
});

test('what is over its limit and what is unknown have a shape of their own on the canvas', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 500, cards: 0 }, { expected: text => text.includes('willReadFrequently') });
  const calm = cluster.nodes.findIndex(node => node.readings[0] > 300 && node.readings[0] < 500);
  const over = cluster.nodes.findIndex(node => node.readings[0] > 810);
  const silent = cluster.nodes.findIndex(node => node.readings.every(value => value === null));
  const partly = cluster.nodes.findIndex(node => node.readings[2] === null && node.readings[0] !== null);
  const shape = index => page.evaluate(i => {
    const canvas = document.querySelector('canvas');
    const size = Number.parseFloat(canvas.style.width) / Math.round(Number.parseFloat(canvas.style.width) / 28);
    const columns = Math.round(canvas.width / devicePixelRatio / size);
    const x = (i % columns) * size;
    const y = Math.floor(i / columns) * size;
    const filled = (dx, dy) => canvas.getContext('2d').getImageData((x + dx) * devicePixelRatio, (y + dy) * devicePixelRatio, 1, 1).data[3] > 0;
    return { middle: filled(13, 13), ring: filled(4, 4), edge: filled(0, 5), corner: filled(Math.ceil(size) - 3, 1) };
  }, index);
  assert.deepEqual(await shape(calm), { middle: true, ring: true, edge: true, corner: true });
  assert.deepEqual(await shape(over), { middle: false, ring: true, edge: true, corner: true });
  assert.deepEqual(await shape(silent), { middle: false, ring: false, edge: true, corner: false });
  assert.deepEqual(await shape(partly), { middle: true, ring: true, edge: true, corner: false });
  await page.getByRole('button', { name: 'partly unknown: 1 node' }).click();
  await page.getByRole('heading', { name: '1 node, Limit ratio: partly unknown' }).waitFor();
  assert.match(await page.locator('main tbody tr').innerText(), new RegExp(`${cluster.nodes[partly].name}\\s+≥ \\d+%`));
  await close();
});

for (const theme of ['light', 'dark']) {
  test(`the ${theme} scale tells its steps by lightness alone, and what is over stands out from the ground`, async t => {
    const { page, close } = await openOn(t, { nodes: 12, cards: 0 }, { theme });
    const values = await page.evaluate(scaleLuminances);
    const ground = values[12];
    const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    for (let i = 1; i < 10; i += 1) assert.ok(ratio(values[i], ground) > ratio(values[i - 1], ground) * 1.05, `step ${i} of ${values}`);
    assert.ok(ratio(values[10], ground) >= 3, 'over');
    assert.ok(ratio(values[11], ground) >= 2.9, 'unknown');
    await close();
  });
}

test('the keyboard alone reaches every view, a cell of the heat map, and its node', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 500, cards: 4000 });
  await page.locator('body').press('Tab');
  const focused = () => page.evaluate(() => document.activeElement.textContent || document.activeElement.tagName);
  const tabTo = async wanted => {
    for (let i = 0; i < 40; i += 1) {
      if ((await focused()).trim() === wanted) return;
      await page.keyboard.press('Tab');
    }
    assert.fail(`Tab does not reach ${wanted}`);
  };
  for (const name of ['GPUs', 'Pending', 'Decisions', 'Policy', 'Health', 'Nodes']) {
    await page.keyboard.press('Home');
    await page.evaluate(() => document.querySelector('.skip').focus());
    await tabTo(name);
    await page.keyboard.press('Enter');
    await page.locator('h1', { hasText: name }).waitFor();
    await page.waitForFunction(() => document.activeElement.tagName === 'H1');
  }
  await tabTo('CANVAS');
  const told = page.locator('.heat [role=status]');
  await told.getByText(cluster.nodes[0].name).waitFor();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  await told.getByText(new RegExp(`^${cluster.nodes[2].name}, .*: .*(% of the limit of|no reading)`)).waitFor();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowUp');
  await told.getByText(new RegExp(`^${cluster.nodes[2].name},`)).waitFor();
  await page.keyboard.press('End');
  await told.getByText(new RegExp(`^${cluster.nodes.at(-1).name},`)).waitFor();
  await page.keyboard.press('Home');
  await page.keyboard.press('Enter');
  await page.locator('h1', { hasText: `Node ${cluster.nodes[0].name}` }).waitFor();
  await close();
});

test('the table below the heat map has the same values, all of them by its button', async t => {
  const { page, close } = await openOn(t, { nodes: 150, cards: 0 });
  assert.equal(await page.locator('main tbody tr').count(), 20);
  await page.getByRole('button', { name: /^Show more/ }).click();
  await page.locator('main tbody tr').nth(149).waitFor();
  const ratios = (await page.locator('main tbody tr td:nth-child(2)').allInnerTexts()).map(text => Number.parseFloat(text)).filter(Number.isFinite);
  assert.deepEqual(ratios, [...ratios].sort((a, b) => b - a), 'the highest first');
  await close();
});

test('a bar of the histogram picks its cells, and colour and order are kept in the address', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 500, cards: 4000 });
  const silent = cluster.nodes.filter(node => node.readings.every(value => value === null));
  const bar = page.getByRole('button', { name: `no reading: ${silent.length} nodes` });
  await bar.click();
  assert.equal(await bar.getAttribute('aria-pressed'), 'true');
  await page.getByRole('heading', { name: `${silent.length} nodes, Limit ratio: no reading` }).waitFor();
  assert.deepEqual((await page.locator('main tbody th').allInnerTexts()).sort(), silent.map(node => node.name).sort());
  await page.getByLabel('Colour').selectOption({ label: 'GPU units held' });
  await page.getByLabel('Order').selectOption('zone');
  await page.locator('.group', { hasText: 'west-1b' }).waitFor();
  const url = page.url();
  assert.match(url, /by=held/);
  assert.match(url, /order=zone/);
  await page.reload();
  await page.locator('.group', { hasText: 'west-1b' }).waitFor();
  assert.equal(await page.getByLabel('Colour').inputValue(), 'held');
  await close();
});

/** The text of the link that has the focus. */
const focusedLink = page => page.evaluate(() => document.activeElement.closest('a')?.textContent);

test('an update moves no other node, card or pod under the focus', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 500, cards: 4000 });
  const rows = page.locator('main tbody th a');
  const wanted = await rows.nth(3).innerText();
  await rows.nth(3).focus();
  const highest = cluster.nodes.find(node => node.readings[0] < 500);
  change(cluster, highest, one => { one.readings[0] = 989; one.inFlight[0] = 200; });
  await rows.first().getByText(highest.name).waitFor();
  assert.equal(await focusedLink(page), wanted);

  await page.evaluate(() => { location.hash = '#/health'; });
  const over = page.locator('section', { has: page.getByRole('heading', { name: /Over a limit/ }) }).locator('a');
  const listed = await over.allInnerTexts();
  await over.last().focus();
  const first = cluster.nodes.find(one => !listed.includes(one.name));
  change(cluster, first, one => { one.readings = [980, 500, 300, 300]; });
  await over.getByText(first.name).waitFor();
  assert.equal(await focusedLink(page), listed.at(-1));

  const node = cluster.nodes.find(one => one.cards.some(card => card.charges.length > 2));
  const { charges } = node.cards.find(card => card.charges.length > 2);
  await page.evaluate(to => { location.hash = to; }, `#/node/${node.name}`);
  const pod = charges[2].name;
  for (const link of [page.locator('.charge a', { hasText: pod }), page.locator('table a', { hasText: pod })]) {
    await link.focus();
    const text = await focusedLink(page);
    const [gone] = charges;
    change(cluster, node, () => { charges.shift(); });
    await page.locator('.charge', { hasText: gone.name }).waitFor({ state: 'detached' });
    assert.equal(await focusedLink(page), text);
    charges.unshift(gone);
    await page.locator('.charge', { hasText: gone.name }).waitFor();
  }
  await page.evaluate(() => { location.hash = '#/pending'; });
  const waiting = page.locator('.pods a', { hasText: 'train-4' });
  await waiting.focus();
  const [longest] = cluster.waiting.splice(cluster.waiting.findIndex(one => one.pod.name === 'train-0'), 1);
  await page.locator('.pods a', { hasText: longest.pod.name }).waitFor({ state: 'detached' });
  assert.equal(await focusedLink(page), 'train-4');
  await close();
});

test('the cursor of a heat map stays on its node, and tells when that comes over its limit', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 500, cards: 4000 }, { hash: '#/nodes?order=value' });
  await page.locator('canvas').focus();
  const told = page.locator('.heat [role=status]');
  for (const key of ['PageDown', 'PageDown', 'ArrowRight']) await page.keyboard.press(key);
  const name = (await told.innerText()).match(/^[^,:]+/)[0];
  const node = cluster.nodes.find(one => one.name === name);
  const others = cluster.nodes.filter(one => one.readings[0] < 300).slice(0, 5);
  for (const one of others) change(cluster, one, () => { one.readings[0] = 985; });
  await page.getByRole('button', { name: /^over its limit: / }).waitFor();
  change(cluster, node, () => { node.readings = [988, 500, 300, 400]; node.inFlight = [0, 0, 0, 0]; });
  await told.getByText(new RegExp(`^${name}, .*over its limit`)).waitFor();
  await page.keyboard.press('Enter');
  await page.locator('h1', { hasText: `Node ${name}` }).waitFor();
  await close();
});

test('with the system’s own colours everything that colours say is still seen', async t => {
  for (const theme of ['light', 'dark']) {
    const { page, cluster, close } = await openOn(t, { nodes: 500, cards: 4000 }, { theme, forcedColors: 'active' });
    await page.locator('canvas').waitFor();
    await page.waitForFunction(() => document.querySelector('canvas').width > 300);
    /** Of text and ground alone, with the shades of its edges, a map has fewer. */
    assert.ok(await coloursOf(page, page.locator('canvas')) >= 8, 'cells');
    assert.ok(await coloursOf(page, page.locator('.histogram')) >= 8, 'the legend');
    const outline = element => element.evaluate(one => getComputedStyle(one).outlineStyle);
    assert.equal(await outline(page.locator('nav a[aria-current]')), 'dotted');
    assert.equal(await outline(page.locator('nav a').last()), 'none');
    await page.locator('.histogram button').first().click();
    await page.locator('h1').focus();
    assert.equal(await outline(page.locator('.histogram button').first()), 'dotted', 'what is picked');
    const node = cluster.nodes.find(one => one.cards.every(card => card.charges.length > 0 && card.used > 0));
    await page.evaluate(to => { location.hash = to; }, `#/node/${node.name}`);
    for (const part of ['.charges', '.line', '.bar']) {
      await page.locator(part).first().waitFor();
      assert.ok(await coloursOf(page, page.locator(part).first()) > 1, part);
    }
    await close();
  }
});

test('a node of a pool is judged by its pool’s limit', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 24 });
  const [gpu, worker] = [cluster.nodes[1], cluster.nodes[10]];
  for (const node of [gpu, worker]) change(cluster, node, one => { one.readings = [830, 300, 300, 300]; one.inFlight = [0, 0, 0, 0]; });
  const row = node => page.locator('tbody tr', { has: page.getByRole('link', { name: node.name, exact: true }) });
  await row(worker).locator('.load.over').waitFor();
  assert.match(await row(worker).locator('.load.over').textContent(), /over its limit: 83% of the node, limit 80%/);
  assert.equal(await row(gpu).locator('.load.over').count(), 0);
  assert.match(await row(gpu).locator('.load').first().textContent(), /83% of the node, limit 85%/);
  await close();
});

test('a view whose own answer fails says from when it is, and a node that is gone is not shown', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 24 }, { expected: text => /503|404/.test(text) });
  const answers = ['cards', 'pending', 'decisions', 'nodes/*', 'policy'].map(name => `**/v1/${name}*`).concat('**/shadow');
  const fail = route => route.fulfill({ status: 503, body: 'away' });
  const node = cluster.nodes[1];
  for (const [view, what, kept] of [
    ['cards', 'GPUs', '.card'], ['pending', 'pending pods', '.pending'], ['decisions', 'decisions', 'tbody tr'],
    [`node/${node.name}`, 'the node', 'tbody tr'], ['policy', 'the policy', 'tbody tr'], ['policy', 'the shadow policy', 'tbody tr'],
  ]) {
    await page.evaluate(to => { location.hash = to; }, `#/${view}`);
    await page.locator(kept).first().waitFor();
    await page.locator('p', { hasText: /^Asking for/ }).first().waitFor({ state: 'detached' });
    for (const path of answers) await page.route(path, fail);
    await page.getByText(new RegExp(`^No answer since \\d\\d:\\d\\d:\\d\\d: ${what} as of then. \\(503: away\\)$`)).waitFor();
    assert.ok(await page.locator(kept).count() > 0, view);
    for (const path of answers) await page.unroute(path);
    await page.evaluate(() => { location.hash = '#/health'; });
    await page.locator('h1', { hasText: 'Health' }).waitFor();
  }
  await page.evaluate(to => { location.hash = to; }, `#/node/${node.name}`);
  await page.locator('tbody tr').first().waitFor();
  cluster.remove(node);
  await page.getByText('No answer for the node. (404').waitFor();
  assert.equal(await page.locator('main :is(table, .card)').count(), 0);
  await close();
});

test('decisions of replicas that gave no answer are said to be missing', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 0 }, { hash: '#/decisions' });
  await page.locator('tbody tr').first().waitFor();
  assert.equal(await page.getByText('No answer from').count(), 0);
  cluster.missing = ['10.0.0.7:19107'];
  for (const view of ['decisions', 'pending', 'policy']) {
    await page.evaluate(to => { location.hash = to; }, `#/${view}`);
    await page.getByText('No answer from 10.0.0.7:19107: its decisions are missing here.').waitFor();
  }
  cluster.missing.push('10.0.0.8:19107');
  await page.getByText('No answer from 10.0.0.7:19107, 10.0.0.8:19107: their decisions are missing here.').waitFor();
  await close();
});

test('a refused policy is told beside the one in force, and in Health', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 0 }, { hash: '#/policy' });
  await page.getByRole('heading', { name: 'Rules' }).waitFor();
  assert.equal(await page.getByText('is refused').count(), 0);
  cluster.refused = '--policy-file /etc/plimsoll/policy.yaml: line 5: spec.limits[0].limit: expected a number';
  const told = '▲ The newest policy is refused: --policy-file /etc/plimsoll/policy.yaml: line 5: spec.limits[0].limit: expected a number. The policy before stays in force.';
  await page.getByRole('status').filter({ hasText: told }).waitFor();
  assert.ok(await page.locator('tbody tr').count() >= 4, 'the policy in force is shown');
  await page.evaluate(() => { location.hash = '#/health'; });
  await page.getByRole('status').filter({ hasText: told }).waitFor();
  await close();
});

test('two pods of one name have an explanation each', async t => {
  const { page, cluster, standIn, close } = await openOn(t, { nodes: 12, cards: 0 }, { hash: '#/decisions' });
  const [newer, , older] = cluster.decided;
  older.pod = { ...newer.pod, uid: 'before' };
  older.node = cluster.nodes.find(node => node.name !== newer.node).name;
  await page.getByLabel('Find').fill(`${newer.pod.namespace}/${newer.pod.name}`);
  const links = page.locator('tbody').getByRole('link', { name: newer.pod.name });
  await links.nth(1).click();
  assert.equal(new URL(page.url()).hash, `#/pod/${newer.pod.namespace}/${newer.pod.name}/before`);
  await page.locator('dd').getByRole('link', { name: older.node }).waitFor();
  await page.evaluate(to => { location.hash = to; }, `#/pod/${newer.pod.namespace}/${newer.pod.name}`);
  await page.locator('dd').getByRole('link', { name: newer.node }).waitFor();
  assert.equal(standIn.requests.filter(path => path === '/explain').length, 2);
  await close();
});

test('an explanation names the part of the pod apart from pods in flight', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 0 });
  const [decided] = cluster.decided;
  change(cluster, cluster.nodes.find(node => node.name === decided.node), node => { node.readings = [300, 300, 300, 300]; node.inFlight = [40, 0, 0, 0]; });
  await page.evaluate(to => { location.hash = to; }, `#/pod/${decided.pod.namespace}/${decided.pod.name}`);
  const load = page.locator('details[open] .load').first();
  await load.waitFor();
  assert.match(await load.textContent(), /36% of the node, limit 80%, 4% of it in flight, 2% of it the pod$/);
  assert.equal(await load.locator('.pod').count(), 1);
  await page.evaluate(to => { location.hash = to; }, `#/node/${decided.node}`);
  await page.locator('h1', { hasText: 'Node' }).waitFor();
  await load.waitFor({ state: 'detached' });
  assert.doesNotMatch(await page.locator('.load').first().textContent(), /the pod/);
  await close();
});

test('a card without units is unknown in the map, and in its table', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 60, cards: 240 }, { hash: '#/cards' });
  await page.locator('canvas').waitFor();
  const node = cluster.nodes[5];
  change(cluster, node, () => { Object.assign(node.cards[1], { units: 0, charges: [], closed: undefined, healthy: true }); });
  await page.getByText('1 GPU without units').waitFor();
  await page.getByText('By GPUs alone: CPU, memory, taints and load may let fewer pods in.').waitFor();
  await page.getByRole('button', { name: /^closed or no units: / }).click();
  await page.locator('tbody tr', { hasText: node.name }).getByText('no units').waitFor();
  await close();
});

test('a map that is higher than a canvas can be is drawn with fewer pixels', async t => {
  const { page, close } = await openOn(t, { nodes: 1500, cards: 0, zones: 1200 }, { hash: '#/nodes?order=zone', deviceScaleFactor: 2, expected: text => text.includes('willReadFrequently') });
  await page.locator('.group').nth(700).waitFor();
  const { height, drawn } = await page.locator('canvas').evaluate(canvas => ({
    height: canvas.height,
    drawn: canvas.getContext('2d').getImageData(0, 0, 10, 200).data.some(value => value > 0),
  }));
  assert.ok(height <= 32767, `${height} pixels`);
  assert.ok(drawn);
  await close();
});

const away = text => /ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_SOCKET_NOT_CONNECTED|503/.test(text);

test('a server that goes is told, and one that comes back as another replica is taken whole', async t => {
  const { page, standIn, cluster, close } = await openOn(t, { nodes: 12, cards: 24 }, { expected: away });
  await standIn.stop();
  const banner = page.getByRole('alert');
  await banner.getByText(/Disconnected: no answer since \d\d:\d\d:\d\d/).waitFor();
  assert.equal(await page.locator('main tbody tr').count(), 12, 'what was known stays');
  standIn.cluster = new Cluster({ nodes: 14, cards: 24, seed: 99 });
  await standIn.start();
  await banner.getByRole('button', { name: 'Try now' }).click();
  await banner.waitFor({ state: 'detached' });
  await page.locator('main tbody tr').nth(13).waitFor();
  assert.equal(await page.locator('main tbody tr').count(), 14);
  assert.notEqual(cluster.prefix, standIn.cluster.prefix);
  await close();
});

/** A page that is not opened yet, without the checks of the others, and a stand-in that does not change. */
async function plainPage(t) {
  const standIn = new StandIn(new Cluster({ nodes: 12, cards: 0 }), { ticking: false });
  const base = await standIn.start();
  t.after(() => standIn.stop());
  const context = await browser.newContext();
  t.after(() => context.close());
  return { page: await context.newPage(), base, standIn };
}

test('a page that is opened while the extender fails says so, and goes on once it answers', async t => {
  const { page, base } = await plainPage(t);
  await page.route('**/v1/state*', route => route.fulfill({ status: 503, body: 'not ready' }), { times: 1 });
  await page.goto(base);
  await page.getByRole('alert').getByText('No answer from the extender. (503: not ready)').waitFor();
  await page.getByRole('button', { name: 'Try now' }).click();
  await page.locator('h1', { hasText: 'Nodes' }).waitFor();
});

test('a page asks each two seconds, more rarely while it fails, and not at all while it is hidden', async t => {
  const { page, base, standIn } = await plainPage(t);
  await page.clock.install();
  // Counted where the page asks: a question on its way to the server belongs to the second in which it was asked.
  await page.addInitScript(() => {
    const send = window.fetch;
    window.asked = 0;
    window.fetch = (path, init) => {
      window.asked += `${path}`.startsWith('../v1/state');
      return send(path, init);
    };
  });
  await page.goto(base);
  await page.locator('h1').waitFor();
  await page.clock.pauseAt(Date.now() + 60000);
  const asked = () => page.evaluate(() => window.asked);
  /** Lets so many seconds pass one by one, each until no answer is awaited. */
  const pass = async seconds => {
    const from = await asked();
    for (let i = 0; i < seconds; i += 1) {
      await page.clock.runFor(1000);
      await page.waitForLoadState('networkidle');
      await page.evaluate(() => fetch('/v1/nodes/none').catch(() => null));
    }
    return await asked() - from;
  };
  const normal = await pass(20);
  assert.ok(normal >= 5 && normal <= 10, `${normal} times in 20 s`);
  standIn.fail = 503;
  const failing = await pass(60);
  assert.ok(failing >= 2 && failing <= 6, `${failing} times in 60 s of failures`);
  standIn.fail = 0;
  await page.evaluate(() => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => true });
    document.dispatchEvent(new Event('visibilitychange'));
  });
  await pass(1);
  assert.equal(await pass(60), 0);
  await page.evaluate(() => {
    delete document.hidden;
    document.dispatchEvent(new Event('visibilitychange'));
  });
  assert.ok(await pass(4) >= 1);
});

test('markup in a name is text in every view', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 24 });
  const namespace = cluster.decided[3].pod.namespace;
  const views = ['cards', 'pending', 'decisions', 'policy', `node/${cluster.nodes[0].name}`, `pod/${namespace}/${encodeURIComponent(MARKUP)}`, `node/${encodeURIComponent(MARKUP)}`];
  let shown = 0;
  for (const view of views) {
    await page.evaluate(to => { location.hash = to; }, `#/${view}`);
    const [last] = decodeURIComponent(view).split('/').slice(-1);
    const heading = last === 'cards' ? 'GPUs' : last;
    await page.waitForFunction(text => document.title.toLowerCase().includes(text.toLowerCase()), view.includes('/') ? decodeURIComponent(view).slice(view.indexOf('/') + 1) : heading);
    await page.locator('p', { hasText: /^Asking for/ }).first().waitFor({ state: 'detached' });
    assert.equal(await page.locator('img, #app b:text-is("bold")').count(), 0, view);
    assert.equal(await page.evaluate(() => window.markup), undefined, view);
    if ((await page.locator('#app').innerText()).includes(MARKUP)) shown += 1;
  }
  assert.ok(shown >= 5, `the name is shown in ${shown} views`);
  await assert.rejects(close(), /404/, 'the node that does not exist is the only fault');
});

test('an explanation of many nodes is asked for in two steps, and its inputs open by keyboard', async t => {
  const { page, cluster, standIn, close } = await openOn(t, { nodes: 600, cards: 4800 }, { hash: '#/decisions' });
  const [decided] = cluster.decided.filter(one => one.asks && one.best.length > 1);
  await page.getByLabel('Find').fill(`${decided.pod.namespace}/${decided.pod.name}`);
  await page.locator('main tbody').getByRole('link', { name: decided.pod.name }).click();
  await page.getByRole('heading', { name: 'Nodes that the decision names' }).waitFor();
  const named = new Set([decided.node, ...decided.best.map(one => one.node)]);
  assert.equal(await page.locator('details').count(), named.size);
  assert.equal(await page.locator('details').first().getAttribute('open'), '', 'the pod’s node is open');
  assert.match(await page.locator('details').first().innerText(), new RegExp(`${decided.node}\\s+its node`));
  await page.getByRole('button', { name: 'Ask for all nodes' }).click();
  await page.getByRole('button', { name: 'Show all 600 nodes' }).waitFor();
  assert.ok(await page.locator('details').count() <= 20);
  const second = page.locator('details').nth(1);
  await second.locator('summary').focus();
  await page.keyboard.press('Enter');
  await second.getByRole('columnheader', { name: 'Outcome' }).first().waitFor();
  await page.getByLabel('as it would be decided now').check();
  await page.locator('dt', { hasText: 'as of now' }).waitFor();
  assert.equal(standIn.requests.filter(path => path === '/explain').length, 3);
  await close();
});

test('a small cluster’s cards are bars stacked by pod, with memory in use beside', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 24 }, { hash: '#/cards' });
  const node = cluster.nodes[1];
  const card = node.cards.find(one => one.charges.length > 1 && one.used !== null);
  const bar = page.locator('section', { has: page.getByRole('link', { name: node.name, exact: true }) }).locator('.card').nth(card.index);
  await bar.waitFor();
  const widths = await bar.locator('.charge').evaluateAll(all => all.map(one => one.getBoundingClientRect().width / one.parentElement.getBoundingClientRect().width));
  card.charges.forEach((charge, i) => assert.ok(Math.abs(widths[i] - charge.units / card.units) < 0.02, `${widths[i]} for ${charge.units} of ${card.units}`));
  const used = await bar.locator('.used').evaluate(one => one.getBoundingClientRect().width / one.parentElement.getBoundingClientRect().width);
  assert.ok(Math.abs(used - card.used / card.memory) < 0.02);
  const [first] = card.charges;
  assert.match(await bar.locator('.charge a').first().getAttribute('aria-label'), new RegExp(`${first.namespace}/${first.name}: ${first.units} units?`), 'told to screen readers');
  assert.equal(await page.getByText('closed: cdi', { exact: true }).count(), 1);
  assert.equal(await page.getByText('unhealthy', { exact: true }).count(), 1);
  await close();
});

test('pending pods say what would make them fit, that they never will, or that they only wait to be bound', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 24 }, { hash: '#/pending' });
  await page.locator('.legend', { hasText: 'Pods without a node that the extender was asked about' }).getByText('kubectl plimsoll pending').waitFor();
  const group = name => page.locator('.pending', { has: page.getByRole('heading', { name }) });
  const train = group(/ml · Job train\s+9 pods, longest 14 min, asks for 20 units/);
  await train.getByText(`Fits if: 1 GPU with 20 free: ${cluster.nodes[0].name}/2 has 17.`).waitFor();
  await train.getByText('10 nodes No GPU with enough free memory').waitFor();
  await group(/ml · big/).getByText('Can never fit: asks for 16 GPUs, where no node has more than 8.').waitFor();
  await group(/Deployment web\s/).getByText('11 of 12 nodes may take it: kube-scheduler has not bound it yet.').waitFor();
  await train.getByRole('link', { name: 'train-4' }).click();
  await page.locator('h1', { hasText: 'Pod ml/train-4' }).waitFor();
  await page.getByText('0 of 12 nodes may take it').waitFor();
  assert.match(await page.locator('main').ariaSnapshot(), /gpu-0\d ✗ may not take it score \d+ No GPU with/, 'words that are read out stand apart');
  await close();
});

test('the theme follows the system until it is chosen, and the choice is kept', async t => {
  const { page, close } = await openOn(t, { nodes: 12, cards: 0 }, { theme: 'dark' });
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await ground();
  await page.emulateMedia({ colorScheme: 'light' });
  const light = await ground();
  assert.notEqual(dark, light);
  const button = page.getByRole('button', { name: /^Theme/ });
  await button.click();
  assert.equal(await button.getAttribute('aria-label'), 'Theme: light. Change it');
  await button.click();
  assert.equal(await ground(), dark);
  await page.reload();
  await page.locator('h1').waitFor();
  assert.equal(await ground(), dark);
  await close();
});

test('without a shadow policy the page says that there is none', async t => {
  const { page, close } = await openOn(t, { nodes: 12, cards: 0, shadow: false }, { hash: '#/policy', expected: text => text.includes('404') });
  await page.getByText('There is none.').waitFor();
  await close();
});

test('a replica that does not lead, and one that has not listed everything, say so', async t => {
  const { page, cluster, close } = await openOn(t, { nodes: 12, cards: 24 }, { hash: '#/cards' });
  change(cluster, cluster.nodes[0], () => { cluster.replica = { ...cluster.replica, leads: false, complete: false, leader: 'scheduler-extender-other' }; });
  await page.getByText('This replica does not lead').waitFor();
  for (const [view, told] of [['nodes', 1], [`node/${cluster.nodes[0].name}`, 1], ['decisions', 0]]) {
    await page.evaluate(to => { location.hash = to; }, `#/${view}`);
    await page.locator('h1', { hasText: new RegExp(view.split('/')[0], 'i') }).waitFor();
    assert.equal(await page.getByText('This replica does not lead').count(), told, view);
  }
  await page.getByText('Not all nodes and pods were listed yet').waitFor();
  await page.getByRole('link', { name: 'Health' }).click();
  await page.getByText('scheduler-extender-other leads.').waitFor();
  await close();
});

test('an address that names no view, and one with odd characters, break nothing', async t => {
  const { page, close } = await openOn(t, { nodes: 12, cards: 0 }, { hash: '#/constructor' });
  await page.locator('h1', { hasText: 'No such view' }).waitFor();
  await page.evaluate(() => { location.hash = '#/nodes?by=%E0%A4&order=constructor'; });
  await page.locator('h1', { hasText: 'Nodes' }).waitFor();
  await close();
});
