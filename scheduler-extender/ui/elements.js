// What several views show: parts of a page, numbers, spans of time. Text from outside becomes text nodes: nothing here
// sets HTML.

import { h } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import htm from 'htm';

export const html = htm.bind(h);

export function address(...parts) {
  return `#/${parts.filter(part => part !== undefined).map(encodeURIComponent).join('/')}`;
}

export function parseAddress(hash) {
  const [path, query = ''] = hash.replace(/^#?\/?/, '').split('?');
  return { parts: path.split('/').map(decode), settings: new URLSearchParams(query) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function setSetting(name, value) {
  const [path] = location.hash.split('?');
  const { settings } = parseAddress(location.hash);
  if (value) settings.set(name, value);
  else settings.delete(name);
  const query = settings.toString();
  location.replace(query ? `${path}?${query}` : path || '#/nodes');
}

/** A view. Its heading has the focus when it opens. */
export function View({ title, legend, children }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${title} – Plimsoll`;
    heading.current.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [title]);
  return html`<h1 ref=${heading} tabindex="-1">${title}</h1>
    ${legend && html`<p class="legend">${legend}</p>`}
    ${children}`;
}

export function Find({ find, hint }) {
  return html`<label>Find <input type="search" value=${find} placeholder=${hint} onInput=${event => setSetting('find', event.target.value)} /></label>`;
}

export function NodeLink({ name }) {
  return html`<a class="name" href=${address('node', name)} title=${name}>${name}</a>`;
}

/** `bare`: without its namespace, where that is said already. */
export function PodLink({ pod: { namespace, name, uid }, bare }) {
  return html`<a class="name" href=${address('pod', namespace, name, uid)} title=${`${namespace}/${name}`}>${
    !bare && html`<span class="muted">${namespace}/</span>`}${name}</a>`;
}

/** A metric's name, which may be broken at underscores. */
export function MetricName({ name }) {
  return name.split('_').map((part, i) => html`${i > 0 && html`_<wbr />`}${part}`);
}

/** Where an answer is awaited, is of before a failure, or lacks other replicas. */
export function Awaited({ answer, at, error, what }) {
  const missing = answer?.missing ?? [];
  return html`
    ${error && html`<p class="notice" role="status">No answer ${answer ? `since ${clock(at)}: ${what} as of then` : `for ${what}`}. (${error.message})</p>`}
    ${!error && !answer && html`<p class="muted" role="status">Asking for ${what} …</p>`}
    ${missing.length > 0 && html`<p class="notice" role="status">No answer from ${missing.join(', ')}: ${
      missing.length > 1 ? 'their' : 'its'} decisions are missing here.</p>`}`;
}

/** A load in thousandths: the reading (null: none is fresh), pods in flight, `pod`, a tick at the limit. */
export function LoadBar({ reading, inFlight = 0, pod = 0, max = null, over, text }) {
  if (reading === null) return html`<span class="load none">no fresh reading</span>`;
  const now = reading + inFlight;
  const part = (kind, from, size) => size > 0 && html`<i class=${kind} style=${{ left: wide(from), width: wide(Math.min(size, 1000 - from)) }}></i>`;
  return html`<span class=${over ? 'load over' : 'load'}>
    <span class="bar" aria-hidden="true">
      ${part('fill', 0, Math.min(reading, now))}${part('flight', reading, inFlight)}${part('flight less', Math.max(0, now), -inFlight)}${part('flight pod', now, pod)}
      ${max !== null && html`<i class="tick" style=${{ left: wide(max) }}></i>`}
    </span>
    <span class="figure">${over && html`<b title="over its limit">▲ <span class="hidden">over its limit: </span></b>`}${
      text ?? percent(now + pod)}<span class="hidden">${max !== null && ` of the node, limit ${percent(max)}`}${
      inFlight > 0 && `, ${percent(inFlight)} of it in flight`}${pod > 0 && `, ${percent(pod)} of it the pod`}</span></span>
  </span>`;
}

function wide(thousandths) {
  return `${Math.max(0, Math.min(1000, thousandths)) / 10}%`;
}

/**
 * A table. A column is its head, what it shows of a row, and its class: `number`, `remarks`, or `name` for the one that
 * names the row. On a narrow page each row becomes a list of values with their heads, except in a `compact` table.
 */
export function Table({ columns, rows, keyOf, compact }) {
  const shown = columns.filter(Boolean);
  return html`<div class=${compact ? 'scroll compact' : 'scroll'}><table>
    <thead><tr>${shown.map(([head, , kind]) => html`<th class=${kind}>${head}</th>`)}</tr></thead>
    <tbody>${rows.map(row => html`<tr key=${keyOf?.(row)}>${shown.map(([head, cell, kind]) => (kind === 'name'
      ? html`<th scope="row">${cell(row)}</th>`
      : html`<td class=${kind}><span class="head" aria-hidden="true">${head}</span><span>${cell(row)}</span></td>`))}</tr>`)}</tbody>
  </table></div>`;
}

/** Terms with their values. `kind`: `figures` in a row, `rules` below each other. */
export function Facts({ facts, kind = 'figures' }) {
  return html`<dl class=${kind}>${facts.filter(Boolean).map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function MoreButton({ shown, all, more, noun }) {
  if (shown >= all) return null;
  return html`<p><button type="button" onClick=${more}>Show more: ${count(shown)} of ${counted(all, noun)} shown</button></p>`;
}

const whole = new Intl.NumberFormat('en');

/** With separators: 40,000. */
export function count(number) {
  return whole.format(number);
}

export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** Thousandths as percent. Near 100 with one decimal, so that a value just over its limit is seen to be over. */
export function percent(thousandths) {
  if (thousandths === null || thousandths === undefined) return '–';
  const value = thousandths / 10;
  const near = value > 99 && value < 101 && value !== 100;
  return `${near ? value.toFixed(1) : Math.round(value)}%`;
}

export function share(fraction) {
  return fraction === null || fraction === undefined ? '–' : percent(fraction * 1000);
}

export function decimal(number) {
  return String(Math.round(number * 100) / 100);
}

/** MiB as GiB, or as MiB below one GiB. */
export function memory(mib) {
  if (mib === null || mib === undefined) return '–';
  return mib < 1024 ? `${Math.round(mib)} MiB` : `${count(Math.round(mib / 102.4) / 10)} GiB`;
}

/** "10 of 22.5 GiB". */
export function memoryOf(part, all) {
  return part < 1024 ? `${memory(part)} of ${memory(all)}` : `${memory(part).replace(' GiB', '')} of ${memory(all)}`;
}

/** Seconds in the two largest units that say something: 40 s, 14 min, 2 h 5 min, 3 d 4 h. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return two(hours, 'h', minutes % 60, 'min');
  return two(Math.floor(hours / 24), 'd', hours % 24, 'h');
}

function two(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** A time of the day, with its date if that is not today. */
export function clock(milliseconds) {
  const then = new Date(milliseconds);
  const day = then.toDateString() === new Date().toDateString() ? '' : `${then.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })}, `;
  return day + then.toLocaleTimeString('en-GB');
}

export function Time({ time }) {
  return html`<time datetime=${time} title=${time}>${clock(Date.parse(time))}</time>`;
}

/** A reason without its hint to the command: the page itself explains. */
export function reasonText(reason) {
  return reason.replace(/ \(see: kubectl plimsoll explain pod\)$/, '');
}

/** A code of the API, such as `too-little-free`, as words. */
export function words(code) {
  return code.replaceAll('-', ' ');
}
