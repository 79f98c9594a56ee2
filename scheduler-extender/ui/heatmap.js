// A canvas of cells: where they lie, how they are drawn, and how they are reached by mouse and keyboard.

import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { count, counted, Find, html, MoreButton, setSetting, Table } from './elements.js';
import { codeOf, countCodes, kindOf, OVER, PARTLY, UNKNOWN } from './measures.js';

const GROUP_LABEL = 20;
/** Of a canvas, in pixels: browsers leave a larger one blank. */
const LARGEST_SIDE = 32767;
/** Rows of the table at first. */
const FIRST = 20;

/** Where cells lie on a canvas. `counts`: cells of each group; each begins a new row. */
export function layOut(width, counts, labelled, wanted = 420) {
  const total = counts.reduce((sum, n) => sum + n, 0);
  const size = Math.max(3, Math.min(28, Math.floor(Math.sqrt((width * wanted) / Math.max(1, total)))));
  const columns = Math.max(1, Math.floor(width / size));
  let top = 0;
  let start = 0;
  const groups = counts.map(n => {
    if (labelled) top += GROUP_LABEL;
    const group = { start, count: n, top };
    top += Math.ceil(n / columns) * size;
    start += n;
    return group;
  });
  return { size, columns, groups, width: columns * size, height: top };
}

export function cornerOf(layout, index) {
  const group = layout.groups.find(one => index < one.start + one.count);
  const local = index - group.start;
  return {
    x: (local % layout.columns) * layout.size,
    y: group.top + Math.floor(local / layout.columns) * layout.size,
  };
}

/** The cell at a point; -1 where there is none. */
export function cellAt(layout, x, y) {
  const column = Math.floor(x / layout.size);
  if (column < 0 || column >= layout.columns) return -1;
  for (const group of layout.groups) {
    const row = Math.floor((y - group.top) / layout.size);
    const local = row * layout.columns + column;
    if (row >= 0 && local < group.count) return group.start + local;
    if (row < 0) return -1;
  }
  return -1;
}

/** The cell that a key leads to; null for a key that leads nowhere. */
export function cellAfter(layout, index, key) {
  const last = layout.groups.reduce((sum, group) => sum + group.count, 0) - 1;
  switch (key) {
    case 'ArrowLeft': return Math.max(0, index - 1);
    case 'ArrowRight': return Math.min(last, index + 1);
    case 'ArrowUp': return rowAway(layout, index, -1);
    case 'ArrowDown': return rowAway(layout, index, 1);
    case 'PageUp': return rowAway(layout, index, -10);
    case 'PageDown': return rowAway(layout, index, 10);
    case 'Home': return 0;
    case 'End': return last;
    default: return null;
  }
}

/** The next cell above or below, at least `by` rows away; the same one if there is none. */
function rowAway(layout, index, by) {
  const { x, y } = cornerOf(layout, index);
  for (let to = y + by * layout.size; to >= 0 && to < layout.height; to += Math.sign(by) * layout.size) {
    const cell = cellAt(layout, x, to);
    if (cell >= 0) return cell;
  }
  return index;
}

/** The scale in the current theme: a canvas reads no custom properties. */
function readColours(canvas) {
  const colours = [...Array(12).keys()].map(code => {
    canvas.style.color = `var(--scale-${code})`;
    return getComputedStyle(canvas).color;
  });
  canvas.style.color = '';
  return colours;
}

/**
 * Draws the cells that have changed since `before`, the last drawing. What is over has a hole, what is unknown is an
 * outline, what is partly unknown lacks a corner: none is told by colour alone.
 */
function draw(canvas, layout, codes, faded, colours, before) {
  const paint = canvas.getContext('2d');
  const ratio = Math.min(devicePixelRatio, LARGEST_SIDE / layout.height);
  const key = [layout.width, layout.height, layout.size, layout.groups.map(g => g.top).join(), ratio, colours].join();
  const all = before?.key !== key || before.codes.length !== codes.length;
  if (all) {
    canvas.width = Math.round(layout.width * ratio);
    canvas.height = Math.round(layout.height * ratio);
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  const inner = layout.size > 3 ? layout.size - 1 : 3;
  const hole = Math.max(1, Math.round(inner / 3));
  const edge = Math.floor((inner - hole) / 2);
  const now = new Uint8Array(codes.length);
  codes.forEach((code, index) => {
    now[index] = code + (faded?.[index] ? 32 : 0);
    if (!all && before.codes[index] === now[index]) return;
    const { x, y } = cornerOf(layout, index);
    if (!all) paint.clearRect(x, y, layout.size, layout.size);
    paint.globalAlpha = faded?.[index] ? 0.15 : 1;
    paint.fillStyle = colours[code % PARTLY];
    paint.fillRect(x, y, inner, inner);
    if (code === OVER) paint.clearRect(x + edge, y + edge, hole, hole);
    if (code === UNKNOWN) paint.clearRect(x + 1, y + 1, inner - 2, inner - 2);
    if (code >= PARTLY) paint.clearRect(x + inner - hole, y, hole, hole);
  });
  return { key, codes: now };
}

/** `codes`: of each item. `faded`: whether it is not looked for. */
export function HeatMap({ label, items, codes, faded, groups, describe, open, theme }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const drawn = useRef(null);
  const [width, setWidth] = useState(0);
  // An update can move an item: its name is kept. `told`: to screen readers.
  const [{ name, told }, setCursor] = useState({});
  const labelled = groups.length > 1;
  const layout = width > 0 ? layOut(width, groups.map(group => group.count), labelled) : null;

  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    if (!layout) return;
    drawn.current = draw(canvas.current, layout, codes, faded, readColours(canvas.current), drawn.current);
  }, [width, codes, faded, groups, theme]);

  const cursor = useMemo(() => items.findIndex(item => item.name === name), [items, name]);
  const item = layout && items[cursor];
  const text = useMemo(() => (item && told ? describe(item) : ''), [name, told, codes[cursor]]);
  function pointed(event) {
    return layout ? items[cellAt(layout, event.offsetX, event.offsetY)] : undefined;
  }
  function go(to) {
    setCursor({ name: items[to]?.name, told: true });
  }
  function onKeyDown(event) {
    if (!layout || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Enter' && item) open(item);
    const to = cellAfter(layout, Math.max(0, cursor), event.key);
    if (to === null) return;
    event.preventDefault();
    go(to);
    const y = cornerOf(layout, to).y + canvas.current.getBoundingClientRect().top;
    if (y < 0 || y > innerHeight - 40) scrollBy(0, y - innerHeight / 2);
  }
  const corner = item && cornerOf(layout, cursor);
  return html`<div class="heat" ref=${box}>
    <p class="readout">${item ? describe(item) : 'Point at a cell, or focus the map and use the arrow keys.'}</p>
    <p class="hidden" role="status">${text}</p>
    <div class="cells" style=${{ height: `${layout?.height ?? 0}px` }}>
      ${labelled && layout && groups.map((group, i) => html`<span class="group" key=${group.label}
        style=${{ top: `${layout.groups[i].top - GROUP_LABEL}px` }}>${group.label} <span class="muted">${count(group.count)}</span></span>`)}
      <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="heat map"
        aria-label=${`${label}. Arrow keys move between cells, Enter opens one. A table with the same values follows.`}
        style=${{ width: `${layout?.width ?? 0}px`, height: `${layout?.height ?? 0}px` }}
        onKeyDown=${onKeyDown} onFocus=${() => item || go(0)}
        onPointerMove=${event => setCursor({ name: pointed(event)?.name })} onPointerLeave=${() => setCursor({})}
        onClick=${event => pointed(event) && open(pointed(event))}></canvas>
      ${corner && html`<span class="cursor" aria-hidden="true" style=${{
        left: `${corner.x}px`, top: `${corner.y}px`, width: `${layout.size}px`, height: `${layout.size}px` }}></span>`}
    </div>
  </div>`;
}

/** Items in the order of their keys, or as they are. Where `grouped`, each key is a group. */
export function arrange(items, keyOf, grouped) {
  if (!keyOf) return { list: items, groups: [{ label: '', count: items.length }] };
  const list = items.map(item => [keyOf(item), item]).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  const groups = [];
  for (const [key] of list) {
    const label = grouped ? key : '';
    if (groups.at(-1)?.label !== label) groups.push({ label, count: 0 });
    groups.at(-1).count += 1;
  }
  return { list: list.map(([, item]) => item), groups };
}

/** The `most` positions among `chosen` with the highest values, highest first; sorts few. */
export function highest(values, chosen, most) {
  const sorted = Float64Array.from(chosen, i => values[i] ?? -1).sort();
  const least = sorted[Math.max(0, sorted.length - most)];
  const above = chosen.filter(i => (values[i] ?? -1) > least).sort((a, b) => values[b] - values[a]);
  return [...above, ...chosen.filter(i => (values[i] ?? -1) === least)].slice(0, most);
}

/**
 * A heat map, a histogram that picks cells of one value, and a table of the cells that are picked and found.
 * `grouping`: the name of an order in groups, and the group of an item.
 */
export function Explorer({ noun, measure, items, grouping: [grouping, groupOf], settings, describe, open, columns, theme, children }) {
  const [picked, setPicked] = useState(null);
  const [shown, setShown] = useState(FIRST);
  const order = settings.get('order');
  const find = settings.get('find') ?? '';
  const { list, groups, codes, values } = useMemo(() => {
    const keyOf = order === 'value' ? item => -(measure.value(item) ?? -1) : order === grouping && groupOf;
    const arranged = arrange(items, keyOf, order === grouping);
    const values = arranged.list.map(measure.value);
    return { ...arranged, values, codes: Uint8Array.from(arranged.list, measure.code ?? (item => codeOf(measure.value(item), measure.partly?.(item)))) };
  }, [items, measure.key, order]);
  const counts = useMemo(() => countCodes(codes), [codes]);
  const faded = useMemo(() => (picked === null && !find ? null
    : Uint8Array.from(list, (item, i) => (picked !== null && kindOf(codes[i]) !== picked) || !(item.node ?? item.name).toLowerCase().includes(find.toLowerCase()))), [codes, picked, find]);
  const chosen = useMemo(() => [...list.keys()].filter(i => !faded?.[i]), [codes, faded]);
  const rows = useMemo(() => highest(values, chosen, shown).map(i => list[i]), [chosen, shown]);
  const all = counted(chosen.length, noun);
  return html`<form class="controls" onSubmit=${event => event.preventDefault()}>
      ${children}
      <label>Order <select onChange=${event => setSetting('order', event.target.value)}>
        ${['name', 'value', grouping].map(one => html`<option selected=${one === order}>${one}</option>`)}
      </select></label>
      <${Find} find=${find} hint="part of a node’s name" />
    </form>
    <${Histogram} counts=${counts} picked=${picked} pick=${setPicked} measure=${measure} noun=${noun} />
    <${HeatMap} label=${`${counted(list.length, noun)} by ${measure.label}`} items=${list} codes=${codes} faded=${faded} groups=${groups}
      describe=${describe} open=${open} theme=${theme} />
    <h2>${chosen.length > shown ? `The ${count(shown)} highest of ${all}` : all}${picked !== null && `, ${measure.label}: ${codeName(picked, measure)}`}</h2>
    <${Table} rows=${rows} keyOf=${item => item.name} columns=${columns} />
    <${MoreButton} shown=${shown} all=${chosen.length} noun=${noun} more=${() => setShown(shown + 200)} />`;
}

/** How many cells have each code, as bars that are the scale's legend too. */
function Histogram({ counts, picked, pick, measure, noun }) {
  const most = Math.max(1, ...counts);
  return html`<ul class="histogram" aria-label=${`Number of ${noun}s by ${measure.label}`}>
    ${counts.map((n, code) => {
      const text = `${codeName(code, measure)}: ${counted(n, noun)}`;
      const colour = code < OVER ? `var(--scale-${code})` : undefined;
      return (n > 0 || code < UNKNOWN) && html`<li key=${code}>
        <button type="button" aria-pressed=${picked === code} aria-label=${text} title=${text} onClick=${() => pick(picked === code ? null : code)}>
          <span class="column"><i class=${`code-${code}`} style=${{ height: `${Math.ceil((n / most) * 100)}%`, backgroundColor: colour }}></i></span>
          <span class="amount">${n > 0 && count(n)}</span>
          <span class="swatch"><i class=${`code-${code}`} style=${{ backgroundColor: colour }}></i></span>
          <span class="range">${code < OVER ? `${code * 10}%` : codeName(code, measure)}</span>
        </button>
      </li>`;
    })}
  </ul>`;
}

function codeName(code, { over, absent }) {
  if (code === OVER) return over;
  if (code === UNKNOWN) return absent;
  if (code === PARTLY) return 'partly unknown';
  return `${code * 10} to ${code * 10 + 10}%`;
}
