// Cards: what they hold by pod, what still fits, and what is stranded.

import { useMemo } from 'preact/hooks';
import { useAnswer } from './state.js';
import { html, address, Awaited, NodeLink, PodLink, Table, View } from './elements.js';
import { closedText, count, counted, memory, memoryOf, share } from './format.js';
import { capacity, codeOf, OVER, UNKNOWN } from './measures.js';
import { Explorer, Order } from './heatmap.js';

const MOST_BARS = 200;

export function Cards({ cluster, settings, theme }) {
  if (cluster.cards === 0) {
    return html`<${View} title="Cards" legend="No node reports cards. Nodes with GPUs need the device plugin of Plimsoll." />`;
  }
  const small = cluster.cards <= MOST_BARS;
  return html`<${View} title="Cards" legend=${small
    ? 'Each bar is a card, stacked by pod: what is held. The line below it is the memory in use, as last measured.'
    : 'Each cell is a card: units held of all its units.'}>
    <${Capacity} cluster=${cluster} />
    ${small ? html`<${AllBars} />` : html`<${CardMap} cluster=${cluster} settings=${settings} theme=${theme} />`}
  <//>`;
}

function Capacity({ cluster }) {
  const sum = useMemo(() => capacity(cluster.nodes), [cluster]);
  const out = [
    sum.unhealthy && `${counted(sum.unhealthy, 'card')} unhealthy`,
    sum.closed && `${counted(sum.closed, 'card')} closed`,
    sum.backedOff && `${counted(sum.backedOff, 'node')} backed off`,
  ].filter(Boolean);
  return html`<dl class="figures">
      <div><dt>cards</dt><dd>${count(sum.cards)}</dd></div>
      <div><dt>units</dt><dd>${count(sum.units)}</dd></div>
      <div><dt>held</dt><dd>${share(sum.held / sum.units)}</dd></div>
      <div><dt>memory in use</dt><dd>${sum.measured ? share(sum.used / sum.measured) : 'not measured'}</dd></div>
      <div><dt>compute held</dt><dd>${share(sum.cores / sum.cards / 100)}</dd></div>
      <div><dt>free on open cards</dt><dd>${counted(sum.free, 'unit')}</dd></div>
    </dl>
    <h2>Still fits</h2>
    <p class="legend">Pods of one size that fit now, and free units that such pods cannot use (stranded).
      ${out.length > 0 && ` Left out: ${out.join(', ')}.`}</p>
    <div class="compact"><${Table} rows=${[...sum.sizes, { size: null, ...sum.whole }]} keyOf=${row => row.size} columns=${[
      ['Pods of', ({ size }) => (size === null ? 'a whole card' : counted(size, 'unit')), 'name'],
      ['still fit', ({ pods }) => html`<b>${count(pods)}</b>`, 'number'],
      ['stranded', ({ stranded }) => count(stranded), 'number'],
      ['of what is free', ({ stranded }) => (sum.free ? share(stranded / sum.free) : '–'), 'number'],
    ]} /></div>`;
}

function AllBars() {
  const { answer, error } = useAnswer('/v1/cards', 4);
  if (answer === null) return html`<${Awaited} error=${error} what="cards" />`;
  return html`<${Bases} cards=${answer.nodes.flatMap(node => node.cards)} />
    ${answer.nodes.map(node => html`<section key=${node.name}>
    <h2><${NodeLink} name=${node.name} /></h2>
    <${CardBars} cards=${node.cards} />
  </section>`)}`;
}

const BASES = {
  recorded: 'on this card by the kubelet’s records',
  chosen: 'chosen at Bind, not yet in the kubelet’s records',
  claimed: 'by its claim, not yet in the kubelet’s records',
  'unknown-place': 'card unknown: counts on every card of the node',
  'unproven-claim': 'claim not proven: counts on every card of the node',
  nominated: 'kept for it: pods were evicted',
  unmanaged: 'memory in use that belongs to no pod',
};

/** How a charge is drawn: what is not yet recorded is hatched, what belongs to no pod is grey. */
const LOOKS = {
  recorded: 'held', chosen: 'reserved', claimed: 'reserved', nominated: 'reserved',
  'unknown-place': 'doubtful', 'unproven-claim': 'doubtful', unmanaged: 'unmanaged',
};

function lookOf(charge) {
  return LOOKS[charge.basis] ?? 'doubtful';
}

/** What the patterns mean that these cards show. */
export function Bases({ cards }) {
  const texts = { reserved: 'reserved, not yet in the kubelet’s records', doubtful: 'card in doubt: counts on every card of its node', unmanaged: 'memory of no pod' };
  const charges = cards.flatMap(card => card.charges);
  const shown = new Set(charges.map(lookOf));
  const namespaces = [...new Set(charges.map(charge => charge.namespace))].filter(Boolean).sort();
  return html`<p class="legend keys">${Object.entries(texts).filter(([look]) => shown.has(look)).map(([look, text]) => html`<span
    key=${look}><i class=${`charge sample ${look}`}></i> ${text}</span>`)}<span><i class="used sample"></i> memory in use</span>
    ${namespaces.slice(0, 12).map(name => html`<span key=${name}><i class=${`charge sample hue-${hueOf(name)}`}></i> ${name}</span>`)}</p>`;
}

/** One of eight hues, always the same for a namespace. */
function hueOf(namespace) {
  let sum = 7;
  for (const character of namespace) sum = (sum * 31 + character.codePointAt(0)) % 9973;
  return sum % 8;
}

export function CardBars({ cards }) {
  return html`<ul class="cards">${cards.map(card => html`<li key=${card.uuid} class="card">
    <span class="title" title=${card.uuid}>${card.index} <span class="muted">${card.model}</span></span>
    <span class="stack">
      <ul class="charges">${charges(card)}</ul>
      ${card.used !== undefined && html`<span class="line" aria-hidden="true"><i class="used" style=${{ width: `${Math.min(100, (card.used / card.memory) * 100)}%` }}></i></span>`}
    </span>
    <span class="text">${card.units - card.free} of ${counted(card.units, 'unit')}${
      card.freeCores < 100 && `, ${100 - card.freeCores}% of compute`}${
      card.used !== undefined && html`<span class="muted">, ${memoryOf(card.used, card.memory)} in use</span>`}${
      !card.healthy && html` <b class="over-text">unhealthy</b>`}${card.closed && html` <b class="over-text">${closedText(card.closed)}</b>`}</span>
  </li>`)}</ul>`;
}

function charges(card) {
  const all = Math.max(card.units, card.charges.reduce((sum, charge) => sum + charge.units, 0));
  return card.charges.map((charge, i) => {
    const pod = charge.namespace ? `${charge.namespace}/${charge.name}` : charge.name || 'no pod';
    const text = `${pod}: ${counted(charge.units, 'unit')}${charge.cores ? `, ${charge.cores}% of compute` : ''}, ${BASES[charge.basis] ?? charge.basis}`;
    return html`<li key=${i} title=${text} class=${`charge ${lookOf(charge)} hue-${hueOf(charge.namespace)}`}
      style=${{ width: `${(charge.units / all) * 100}%` }}>
      <span aria-hidden="true">${charge.namespace
        ? html`<a href=${address('pod', charge.namespace, charge.name)} tabindex="-1">${charge.name}</a>`
        : charge.name || 'no pod'}</span><span class="hidden">${text}</span>
    </li>`;
  });
}

/** The pods on a node's cards as a table: what the bars show by colour and width. */
export function Charges({ cards }) {
  const rows = cards.flatMap(card => card.charges.map(charge => ({ card, charge })));
  if (rows.length === 0) return null;
  return html`<${Table} rows=${rows} columns=${[
    ['Pod', ({ charge }) => (charge.namespace ? html`<${PodLink} pod=${charge} />` : charge.name || 'no pod'), 'name'],
    ['Card', ({ card }) => card.index, 'number'],
    ['Units', ({ charge }) => charge.units, 'number'],
    ['Compute', ({ charge }) => (charge.cores ? `${charge.cores}%` : '–'), 'number'],
    ['Why it counts there', ({ charge }) => BASES[charge.basis] ?? charge.basis],
  ]} />`;
}

/** The code of a card: unhealthy is marked as over, closed as unknown. */
function codeOfCard(card) {
  if (card.unhealthy) return OVER;
  if (card.closed) return UNKNOWN;
  return Math.min(9, codeOf(card.held / card.units));
}

function stateOf(card) {
  return [card.unhealthy && 'unhealthy', card.closed && 'closed'].filter(Boolean).join(', ');
}

function CardMap({ cluster, settings, theme }) {
  const order = settings.get('order') ?? 'name';
  const arranged = useMemo(() => {
    const list = cluster.nodes.flatMap(row => row.cards.map(card => ({ row, card })));
    if (order === 'held') list.sort((a, b) => heldShare(b) - heldShare(a));
    if (order === 'model') list.sort((a, b) => (a.card.model < b.card.model ? -1 : a.card.model > b.card.model ? 1 : 0));
    const groups = [];
    for (const { card } of list) {
      const label = order === 'model' ? card.model : '';
      if (groups.at(-1)?.label !== label) groups.push({ label, count: 0 });
      groups.at(-1).count += 1;
    }
    return { list, groups, rank: heldShare, codes: Uint8Array.from(list, one => codeOfCard(one.card)) };
  }, [cluster, order]);
  return html`<h2>Cards by units held</h2>
    <p class="controls"><${Order} orders=${{ name: 'node', held: 'units held', model: 'model' }} chosen=${order} /></p>
    <${Explorer} ...${arranged} noun="card" measure=${{ label: 'units held', over: 'unhealthy', absent: 'closed' }} theme=${theme}
      describe=${({ row, card }) => [`Card ${card.index} of ${row.name}, ${card.model}: ${card.held} of ${counted(card.units, 'unit')} held by ${counted(card.pods, 'pod')}`,
        card.used !== null && `${memoryOf(card.used, card.memory)} in use`, stateOf(card)].filter(Boolean).join('; ')}
      open=${({ row }) => { location.hash = address('node', row.name); }}
      keyOf=${({ row, card }) => `${row.name}/${card.index}`} columns=${[
        ['Node', ({ row }) => html`<${NodeLink} name=${row.name} />`, 'name'],
        ['Card', ({ card }) => card.index, 'number'],
        ['Model', ({ card }) => card.model],
        ['Held', one => share(heldShare(one)), 'number'],
        ['Units', ({ card }) => `${card.held} of ${card.units}`, 'number'],
        ['Pods', ({ card }) => card.pods, 'number'],
        ['Memory in use', ({ card }) => memory(card.used), 'number'],
        ['Remarks', ({ card }) => stateOf(card), 'remarks'],
      ]} />`;
}

function heldShare({ card }) {
  return card.held / card.units;
}
