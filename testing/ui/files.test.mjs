// What is served: sizes, vendored files, and that nothing comes from elsewhere.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { importMapHash, UI } from './stand-in.mjs';

const BUDGET = 40_000;
const VENDORED = JSON.parse(readFileSync(path.join(UI, 'vendor/SOURCES.json'), 'utf8'));

function served() {
  return readdirSync(UI, { recursive: true }).filter(name => /\.(html|css|m?js)$/.test(name)).sort();
}

function text(name) {
  return readFileSync(path.join(UI, name), 'utf8');
}

test('all that is served is at most 40 kB with gzip', t => {
  const sizes = served().map(name => [name, gzipSync(text(name), { level: 9 }).length]);
  const sum = sizes.reduce((all, [, size]) => all + size, 0);
  t.diagnostic(`${sum} bytes: ${sizes.map(([name, size]) => `${name} ${size}`).join(', ')}`);
  assert.ok(sum <= BUDGET, `${sum} bytes`);
});

test('every vendored file is the one that its source names', () => {
  const named = VENDORED.flatMap(source => source.files);
  assert.deepEqual(readdirSync(path.join(UI, 'vendor')).sort(), [...named.map(one => one.file), 'SOURCES.json'].sort());
  for (const { file, sha256 } of named) {
    assert.equal(createHash('sha256').update(readFileSync(path.join(UI, 'vendor', file))).digest('hex'), sha256, file);
  }
  for (const { name, version, licence, tarballSha256, files } of VENDORED) {
    assert.match(version, /^\d+\.\d+\.\d+$/, name);
    assert.match(tarballSha256, /^[0-9a-f]{64}$/, name);
    assert.ok(licence && files.some(one => one.file === `LICENSE-${name}`), `${name} has its licence beside it`);
  }
});

test('the page has one inline script, its import map, no inline style and no handler', () => {
  const page = text('index.html');
  importMapHash(page);
  assert.doesNotMatch(page, /<style|\sstyle=|\son[a-z]+=/);
  const { imports } = JSON.parse(page.match(/<script type="importmap">([^<]*)</)[1]);
  for (const file of Object.values(imports)) assert.ok(served().includes(path.normalize(file)), file);
  for (const [, name] of served().filter(file => !file.startsWith('vendor/') && file.endsWith('.js')).flatMap(file => [...text(file).matchAll(/^(?:import (?:.* from )?|\} from )'([^']+)';$/gm)])) {
    assert.ok(name in imports || served().includes(path.normalize(name)), `${name} is served`);
  }
});

test('nothing is fetched from elsewhere, and no text from outside becomes markup', () => {
  for (const name of served().filter(file => !file.startsWith('vendor/'))) {
    assert.doesNotMatch(text(name), /https?:\/\//, name);
    assert.doesNotMatch(text(name), /innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|\beval\b|new Function|document\.write/, name);
    if (name.endsWith('.css')) assert.doesNotMatch(text(name), /url\(|@import/, name);
  }
});
