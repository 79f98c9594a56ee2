// Cards: what they hold by pod, what still fits, and what is stranded.

import { useMemo } from 'preact/hooks';
import { useAnswer } from './state.js';
import {
  address, Awaited, count, counted, Facts, html, memory,
  memoryOf, NodeLink, PodLink, share, Table, View, words,
} from './elements.js';
import { capacity, codeOf, OVER, UNKNOWN } from './measures.js';
import { Explorer } from './heatmap.js';

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
  const sum = useMemo(() => capacity(cluster.nodes), [cluster.nodes]);
  const out = [
    sum.unhealthy && `${counted(sum.unhealthy, 'card')} unhealthy`,
    sum.closed && `${counted(sum.closed, 'card')} closed`,
    sum.backedOff && `${counted(sum.backedOff, 'node')} backed off`,
  ].filter(Boolean);
  return html`<${Facts} facts=${[
      ['cards', count(sum.cards)],
      ['units', count(sum.units)],
      ['held', share(sum.held / sum.units)],
      ['memory in use', sum.measured ? share(sum.used / sum.measured) : 'not measured'],
      ['compute held', share(sum.cores / sum.cards / 100)],
      ['free on open cards', counted(sum.free, 'unit')],
    ]} />
    <h2>Still fits</h2>
    <p class="legend">Pods of one size that fit now, and free units that such pods cannot use (stranded).
      ${out.length > 0 && ` Left out: ${out.join(', ')}.`}</p>
    <${Table} compact rows=${[
      ['still fit', one => html`<b>${count(one.pods)}</b>`],
      ['stranded', one => count(one.stranded)],
      ['of what is free', one => (sum.free ? share(one.stranded / sum.free) : '–')],
    ]} columns=${[
      ['Pods of', ([title]) => title, 'name'],
      ...sum.sizes.map(one => [counted(one.size, 'unit'), ([, cell]) => cell(one), 'number']),
      ['a whole card', ([, cell]) => cell(sum.whole), 'number'],
    ]} />`;
}

function AllBars() {
  const { answer, error } = useAnswer('/v1/cards', 4);
  if (answer === null) return html`<${Awaited} error=${error} what="cards" />`;
  const all = answer.nodes.flatMap(node => node.cards);
  return html`<${Bases} cards=${all} />
    ${answer.nodes.map(node => html`<section key=${node.name}>
    <h2><${NodeLink} name=${node.name} /></h2>
    <${CardBars} cards=${node.cards} all=${all} />
  </section>`)}`;
}

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
  const shown = new Set(cards.flatMap(card => card.charges.map(lookOf)));
  return html`<p class="legend keys">${Object.entries(texts).filter(([look]) => shown.has(look)).map(([look, text]) => html`<span
    key=${look}><i class=${`charge sample ${look}`}></i> ${text}</span> `)}<span><i class="used sample"></i> memory in use</span>
    ${namespacesOf(cards).slice(0, 12).map((name, i) => html`<span key=${name}><i class="charge sample" style=${hue(i)}></i> ${name}</span>`)}</p>`;
}

/** The namespaces of what is charged on cards. Each has one of eight hues, by its place here. */
function namespacesOf(cards) {
  return [...new Set(cards.flatMap(card => card.charges.map(charge => charge.namespace)))].filter(Boolean).sort();
}

function hue(i) {
  return { '--hue': [250, 55, 150, 320, 95, 200, 20, 285][i % 8] ?? 250 };
}

/** Cards as bars. `all`: the cards of the whole view, so that a namespace has one hue in it. */
export function CardBars({ cards, all = cards }) {
  const namespaces = namespacesOf(all);
  return html`<ul class="cards">${cards.map(card => html`<li key=${card.uuid} class="card">
    <span class="title" title=${card.uuid}>${card.index} <span class="muted">${card.model}</span></span>
    <span class="stack">
      <ul class="charges">${charges(card, namespaces)}</ul>
      ${card.used !== undefined && html`<span class="line" aria-hidden="true"><i class="used" style=${{ width: `${Math.min(100, (card.used / card.memory) * 100)}%` }}></i></span>`}
    </span>
    <span class="text">${card.units - card.free} of ${counted(card.units, 'unit')}${
      card.freeCores < 100 && `, ${100 - card.freeCores}% of compute`}${
      card.used !== undefined && html`<span class="muted">, ${memoryOf(card.used, card.memory)} in use</span>`}${
      !card.healthy && html` <b class="over-text">unhealthy</b>`}${card.closed && html` <b class="over-text">${`closed: ${words(card.closed)}`}</b>`}</span>
  </li>`)}</ul>`;
}

function charges(card, namespaces) {
  const all = Math.max(card.units, card.charges.reduce((sum, charge) => sum + charge.units, 0));
  return card.charges.map((charge, i) => {
    const pod = charge.namespace ? `${charge.namespace}/${charge.name}` : charge.name || 'no pod';
    const text = `${pod}: ${counted(charge.units, 'unit')}${charge.cores ? `, ${charge.cores}% of compute` : ''}, ${words(charge.basis)}`;
    return html`<li key=${i} title=${text} class=${`charge ${lookOf(charge)}`}
      style=${{ width: `${(charge.units / all) * 100}%`, ...hue(namespaces.indexOf(charge.namespace)) }}>
      ${charge.namespace ? html`<a href=${address('pod', charge.namespace, charge.name)} aria-label=${text}>${charge.name}</a>`
        : html`<span aria-label=${text} role="img">${charge.name || 'no pod'}</span>`}
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
    ['Basis', ({ charge }) => words(charge.basis)],
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

const BY_HELD = { label: 'units held', over: 'unhealthy', absent: 'closed', value: card => card.held / card.units, code: codeOfCard };

function CardMap({ cluster, settings, theme }) {
  const items = useMemo(() => cluster.nodes.flatMap(row => row.cards), [cluster.nodes]);
  return html`<h2>Cards by units held</h2>
    <${Explorer} noun="card" measure=${BY_HELD} items=${items} grouping=${['model', card => card.model]}
      name=${card => card.node} settings=${settings} theme=${theme}
      describe=${card => [`Card ${card.index} of ${card.node}, ${card.model}: ${card.held} of ${counted(card.units, 'unit')} held by ${counted(card.pods, 'pod')}`,
        card.used !== null && `${memoryOf(card.used, card.memory)} in use`, stateOf(card)].filter(Boolean).join('; ')}
      open=${card => { location.hash = address('node', card.node); }}
      columns=${[
        ['Node', card => html`<${NodeLink} name=${card.node} />`, 'name'],
        ['Card', card => card.index, 'number'],
        ['Model', card => card.model],
        ['Held', card => share(BY_HELD.value(card)), 'number'],
        ['Units', card => `${card.held} of ${card.units}`, 'number'],
        ['Pods', card => card.pods, 'number'],
        ['Memory in use', card => memory(card.used), 'number'],
        ['Remarks', card => stateOf(card), 'remarks'],
      ]} />`;
}
