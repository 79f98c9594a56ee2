// Makes the pictures of the page in docs/pictures: node pictures.mjs

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { openPage, startChromium } from './browser.mjs';
import { Cluster, StandIn } from './stand-in.mjs';

const FOLDER = fileURLToPath(new URL('../../docs/pictures/', import.meta.url));
const SMALL = { nodes: 12, cards: 24, odd: 'index-7f9c4' };
const LARGE = { nodes: 5000, cards: 40000, odd: 'index-7f9c4' };
const PICTURES = [
  { name: 'ui-nodes', cluster: SMALL, hash: '#/nodes', theme: 'light', height: 520 },
  { name: 'ui-cards', cluster: SMALL, hash: '#/cards', theme: 'light', height: 800 },
  { name: 'ui-pending', cluster: SMALL, hash: '#/pending', theme: 'light', height: 600 },
  { name: 'ui-pod', cluster: SMALL, hash: '#/pod/ml/train-0', theme: 'light', height: 900 },
  { name: 'ui-heat-map', cluster: LARGE, hash: '#/nodes?order=zone', theme: 'dark', height: 900 },
];

mkdirSync(FOLDER, { recursive: true });
const browser = await startChromium();
for (const { name, cluster, hash, theme, height } of PICTURES) {
  const standIn = new StandIn(new Cluster(cluster), { ticking: false });
  const base = await standIn.start();
  const { page, close } = await openPage(browser, base, { theme, height, hash });
  await page.locator('main :is(tbody tr, canvas, .card, .pending)').first().waitFor();
  await page.locator('p', { hasText: /^Asking for/ }).first().waitFor({ state: 'detached' });
  await page.screenshot({ path: `${FOLDER}${name}.png`, animations: 'disabled' });
  await close();
  await standIn.stop();
}
await browser.close();
