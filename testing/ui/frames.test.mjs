// Prints how long the page takes: nothing here fails for being slow.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { openPage, startChromium } from './browser.mjs';
import { Cluster, StandIn } from './stand-in.mjs';

for (const view of ['nodes', 'cards']) {
  test(`frames of ${view} while updates of 5,000 nodes with 40,000 cards come in`, { skip: process.env.PLIMSOLL_UI ? 'needs the stand-in' : false }, async t => {
    const standIn = new StandIn(new Cluster({ nodes: 5000, cards: 40000 }));
    const base = await standIn.start();
    t.after(() => standIn.stop());
    const full = JSON.stringify(standIn.cluster.state());
    t.diagnostic(`all nodes: ${full.length} bytes, ${gzipSync(full).length} with gzip`);
    const from = standIn.cluster.versionText();
    standIn.cluster.tick();
    standIn.cluster.tick();
    t.diagnostic(`an update of two seconds: ${gzipSync(JSON.stringify(standIn.cluster.state(from))).length} bytes with gzip`);
    const browser = await startChromium();
    t.after(() => browser.close());
    const started = performance.now();
    const { page, close } = await openPage(browser, base, { hash: `#/${view}` });
    await page.locator('canvas').waitFor();
    t.diagnostic(`opened in ${Math.round(performance.now() - started)} ms`);
    const { frames, tasks } = await page.evaluate(() => new Promise(resolve => {
      const frames = [];
      const tasks = [];
      new PerformanceObserver(list => tasks.push(...list.getEntries().map(entry => entry.duration))).observe({ entryTypes: ['longtask'] });
      let last = performance.now();
      const frame = now => {
        frames.push(now - last);
        last = now;
        if (frames.reduce((sum, one) => sum + one, 0) < 10000) requestAnimationFrame(frame);
        else resolve({ frames, tasks });
      };
      requestAnimationFrame(frame);
    }));
    frames.sort((a, b) => a - b);
    const at = part => `${frames[Math.floor((frames.length - 1) * part)].toFixed(1)} ms`;
    t.diagnostic(`${frames.length} frames in 10 s: median ${at(0.5)}, 99% ${at(0.99)}, longest ${at(1)}; tasks over 50 ms: ${tasks.map(Math.round).join(', ') || 'none'}`);
    assert.ok(standIn.requests.filter(path => path.startsWith('/v1/state?since=')).length > 0, 'updates came in');
    await close();
  });
}
