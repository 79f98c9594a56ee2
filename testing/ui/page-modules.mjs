// Lets Node import the page's modules as a browser does: bare names by the import map, every file as a module.

import { readFileSync } from 'node:fs';
import { register } from 'node:module';
import { pathToFileURL } from 'node:url';

const UI = new URL('../../scheduler-extender/ui/', import.meta.url);
const page = readFileSync(new URL('index.html', UI), 'utf8');
const { imports } = JSON.parse(page.match(/<script type="importmap">([^<]*)</)[1]);

const hooks = `
const UI = ${JSON.stringify(UI.href)};
const imports = ${JSON.stringify(imports)};
export function resolve(name, context, next) {
  const inside = context.parentURL?.startsWith(UI) && imports[name];
  return inside ? { url: new URL(imports[name], UI).href, format: 'module', shortCircuit: true } : next(name, context);
}
export function load(url, context, next) {
  return next(url, url.startsWith(UI) ? { ...context, format: 'module' } : context);
}`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`, pathToFileURL('./'));
