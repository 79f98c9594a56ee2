// Chromium under test: started once for a test file, with a page for each test that fails on any fault of its own.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { chromium } from 'playwright-core';

const EXECUTABLE = process.env.CHROMIUM ?? '/usr/bin/chromium';
/** For how long something is awaited before a test fails, in milliseconds. */
const PATIENCE = Number(process.env.UI_PATIENCE_MS ?? 60000);

export async function startChromium() {
  assert.ok(existsSync(EXECUTABLE), `no Chromium at ${EXECUTABLE}: install Debian's package chromium, or name another in CHROMIUM`);
  const args = process.getuid() === 0 ? ['--no-sandbox'] : [];
  return chromium.launch({ executablePath: EXECUTABLE, args, timeout: 120000 });
}

/** How many colours an element has on the screen. */
export async function coloursOf(page, element) {
  const picture = (await element.screenshot({ animations: 'disabled' })).toString('base64');
  return page.evaluate(async text => {
    const image = await createImageBitmap(new Blob([Uint8Array.from(atob(text), char => char.charCodeAt(0))]));
    const paint = new OffscreenCanvas(image.width, image.height).getContext('2d', { willReadFrequently: true });
    paint.drawImage(image, 0, 0);
    return new Set(new Uint32Array(paint.getImageData(0, 0, image.width, image.height).data.buffer)).size;
  }, picture);
}

/**
 * Opens a view. `faults` gets what the page must never have: errors, violations of its policy, requests to elsewhere.
 * A request that fails because the server is away is none of its faults: those are in `faults` only as `expected` says.
 * `rest`: more settings of the browser, as Playwright names them.
 */
export async function openPage(browser, base, { width = 1280, height = 900, theme = 'light', hash = '#/nodes', expected = () => false, ...rest } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, ...rest });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  const faults = [];
  const note = text => { if (!expected(text)) faults.push(text); };
  page.on('console', message => { if (message.type() === 'error' || message.type() === 'warning') note(`console: ${message.text()}`); });
  page.on('pageerror', error => note(`error: ${error.stack}`));
  page.on('request', request => { if (!request.url().startsWith(new URL(base).origin) && !request.url().startsWith('data:')) note(`request to elsewhere: ${request.url()}`); });
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener('securitypolicyviolation', event => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  await page.goto(base + hash, { timeout: PATIENCE });
  await page.locator('h1').waitFor();
  return {
    page,
    faults,
    async close() {
      const violations = await page.evaluate(() => window.violations);
      await context.close();
      assert.deepEqual(violations, [], 'violations of the Content-Security-Policy');
      assert.deepEqual(faults, [], 'faults of the page');
    },
  };
}
