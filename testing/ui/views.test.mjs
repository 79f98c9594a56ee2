// Every view in Chromium, of any cluster: against the stand-in at three sizes, or against the extender of PLIMSOLL_UI.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { openPage, startChromium } from './browser.mjs';
import { poorContrasts, unnamedControls } from './checks.mjs';
import { Cluster, StandIn } from './stand-in.mjs';

const OUTSIDE = process.env.PLIMSOLL_UI;
const SIZES = [[12, 24], [500, 4000], [5000, 40000]];
const TITLES = { nodes: 'Nodes', cards: 'GPUs', pending: 'Pending', decisions: 'Decisions', policy: 'Policy', health: 'Health' };

let browser;
before(async () => { browser = await startChromium(); });
after(() => browser?.close());

/** A cluster without a shadow policy answers 404, which the browser reports as an error of its own. */
const noShadow = text => Boolean(OUTSIDE) && text.includes('404');

async function eachView(base, theme, width, t) {
  const opened = await openPage(browser, base, { theme, width, expected: noShadow });
  const { page } = opened;
  const [node] = await page.locator('main a[href^="#/node/"]').evaluateAll(links => links.map(link => link.hash));
  for (const hash of [...Object.keys(TITLES).map(name => `#/${name}`), node].filter(Boolean)) {
    await page.evaluate(to => { location.hash = to; }, hash);
    const title = TITLES[hash.slice(2)] ?? `Node ${decodeURIComponent(hash.split('/')[2])}`;
    await page.locator('h1', { hasText: new RegExp(`^${title}$`) }).waitFor();
    await page.locator('p', { hasText: /^Asking for/ }).first().waitFor({ state: 'detached' });
    const where = `${hash}, ${theme}, ${width} px`;
    await page.waitForFunction(expected => document.title === expected, `${title} – Plimsoll`);
    assert.equal(await page.locator('h1').count(), 1, where);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${where}: the page is no wider than the window`);
    assert.deepEqual(await page.evaluate(poorContrasts), [], `${where}: contrast of text`);
    assert.deepEqual(await page.evaluate(unnamedControls), [], `${where}: controls without a name`);
  }
  await opened.close();
}

for (const [nodes, cards] of OUTSIDE ? [[null, null]] : SIZES) {
  const name = OUTSIDE ?? `${nodes} nodes with ${cards} cards`;
  test(`every view of ${name} opens in both themes, wide and narrow, without a fault`, async t => {
    const standIn = OUTSIDE ? null : new StandIn(new Cluster({ nodes, cards }));
    const base = OUTSIDE ?? await standIn.start();
    t.after(() => standIn?.stop());
    for (const [theme, width] of [['light', 1280], ['dark', 1280], ['light', 360], ['dark', 360]]) await eachView(base, theme, width, t);
  });
}
