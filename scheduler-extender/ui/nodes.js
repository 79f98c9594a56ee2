// Nodes by load and GPUs by what they hold: rows and bars in a small cluster, heat maps in a large one. And the page
// of one node.

import { useMemo } from 'preact/hooks';
import { useAnswer } from './state.js';
import {
  address, Awaited, count, counted, decimal, Facts, html, LoadBar, memory, memoryOf, MetricName,
  NodeLink, percent, PodLink, setSetting, share, span, Table, View, words,
} from './elements.js';
import { capacity, codeOf, isOver, limitOf, limitRatio, loadText, measures, OVER, sizes, UNKNOWN } from './measures.js';
import { Explorer } from './heatmap.js';

const MOST_ROWS = 60;
const MOST_METRICS = 6;
const MOST_BARS = 200;

export function Nodes({ cluster, settings, theme }) {
  if (cluster.nodes.length <= MOST_ROWS) return html`<${NodeRows} cluster=${cluster} />`;
  return html`<${NodeMap} cluster=${cluster} settings=${settings} theme=${theme} />`;
}

function marks(row, cluster) {
  const unhealthy = row.cards.filter(card => card.unhealthy).length;
  const closed = row.cards.filter(card => card.closed).length;
  return [
    row.limitRatio > 1000 && 'over its limit',
    row.missing > 0 && `${row.missing} of ${cluster.metrics.length} readings missing`,
    row.backedOff && 'backed off: no GPU pods for a while',
    unhealthy > 0 && `${counted(unhealthy, 'GPU')} unhealthy`,
    closed > 0 && `${counted(closed, 'GPU')} closed`,
    row.unplaced > 0 && `${counted(row.unplaced, 'unit')} on no GPU yet`,
  ].filter(Boolean);
}

/** How old the oldest reading is that counts. */
export function readingAge(row, cluster) {
  return row.readAt === null ? '–' : span(cluster.time - row.readAt);
}

function heldOf(row) {
  const [units, held] = ['units', 'held'].map(key => row.cards.reduce((sum, card) => sum + card[key], 0));
  return { held, units, part: units ? (held / units) * 1000 : null };
}

function NodeRows({ cluster }) {
  const metrics = cluster.metrics.slice(0, MOST_METRICS);
  const left = cluster.metrics.length - metrics.length;
  const hasZones = cluster.nodes.some(row => row.zone !== null);
  return html`<${View} title="Nodes" legend=${html`Load of ${counted(cluster.nodes.length, 'node')}. A tick${' '}<i
    class="sample tick"></i> is the limit, the hatched part${' '}<i class="sample flight"></i> belongs to pods that no
    reading shows yet, ▲ is over its limit. ${left > 0 && `A node’s page has ${counted(left, 'more metric')}.`}`}>
    <${Table} rows=${cluster.nodes} keyOf=${row => row.name} columns=${[
      ['Node', row => html`<${NodeLink} name=${row.name} />`, 'name'],
      hasZones && ['Zone', row => row.zone ?? '–'],
      ['Limit ratio', row => ratio(row, cluster), 'number'],
      ...metrics.map((metric, i) => [html`<${MetricName} name=${metric.name} />`, row => html`<${LoadBar} reading=${row.readings[i]}
        inFlight=${row.inFlight[i]} max=${limitOf(cluster, row, i)} over=${isOver(cluster, row, i)} />`]),
      ['Score', row => row.score, 'number'],
      cluster.cards > 0 && ['GPU units held', row => (heldOf(row).part === null ? '–' : html`<${LoadBar}
        reading=${heldOf(row).part} text=${`${heldOf(row).held} of ${heldOf(row).units}`} />`)],
      ...lastColumns(cluster),
    ]} />
  <//>`;
}

function ratio(row, cluster) {
  return html`<b class=${row.limitRatio > 1000 ? 'over-text' : ''}>${limitRatio(cluster, row)}</b>`;
}

function lastColumns(cluster) {
  return [
    ['Oldest reading', row => readingAge(row, cluster), 'number'],
    ['Remarks', row => marks(row, cluster).join('; '), 'remarks'],
  ];
}

function NodeMap({ cluster, settings, theme }) {
  const all = measures(cluster);
  const measure = all.find(one => one.key === settings.get('by')) ?? all[0];
  const byMetric = cluster.metrics.some(metric => metric.name === measure.key);
  const choices = group => all.filter(one => one.group === group).map(one => html`<option value=${one.key}
    selected=${one.key === measure.key}>${one.label}</option>`);
  return html`<${View} title="Nodes" legend=${measure.legend}>
    <${Explorer} key=${measure.key} noun="node" measure=${measure} items=${cluster.nodes} grouping=${['zone', row => row.zone ?? 'no zone']}
      settings=${settings} theme=${theme}
      describe=${row => [`${row.name}${row.zone === null ? '' : `, ${row.zone}`}: ${measure.text(row)}`, ...marks(row, cluster)].join('; ')}
      open=${row => { location.hash = address('node', row.name); }}
      columns=${[
        ['Node', row => html`<${NodeLink} name=${row.name} />`, 'name'],
        [measure.label, row => (measure.key === 'limit' ? limitText(row, cluster) : measure.text(row))],
        !byMetric && measure.key !== 'limit' && ['Limit ratio', row => ratio(row, cluster), 'number'],
        cluster.cards > 0 && ['GPU units held', row => percent(heldOf(row).part), 'number'],
        ['Zone', row => row.zone ?? '–'],
        ...lastColumns(cluster),
      ]}>
      <label>Colour <select onChange=${event => setSetting('by', event.target.value)}>
        ${[...new Set(all.map(one => one.group))].map(group => html`<optgroup label=${group}>${choices(group)}</optgroup>`)}
      </select></label>
    <//>
  <//>`;
}

/** "102% mem_usage_avg_5m 82%, limit 80%". */
function limitText(row, cluster) {
  const i = cluster.metrics.findIndex(metric => metric.name === row.limit);
  return html`${ratio(row, cluster)}${i >= 0 && ` ${row.limit} ${loadText(cluster, row, i)}`}`;
}

export function NodePage({ parts: [, name = ''], cluster }) {
  const got = useAnswer(`/v1/nodes/${encodeURIComponent(name)}`, 4);
  const row = cluster.byName.get(name);
  return html`<${View} title=${`Node ${name}`} legend=${html`Its load, and what its GPUs hold.
    ${' '}<a href=${`#/decisions?find=${encodeURIComponent(name)}`}>Decisions that name it</a>`}>
    <${Awaited} ...${got} what="the node" />
    ${got.answer && html`<${Detail} node=${got.answer} row=${row} />`}
  <//>`;
}

function Detail({ node, row }) {
  const facts = [
    ['pool', node.pool ?? 'none'],
    row?.zone && ['zone', row.zone],
    node.cpu !== undefined && ['cores', decimal(node.cpu)],
    node.requestedCpu !== undefined && ['cores requested', decimal(node.requestedCpu)],
    node.memory !== undefined && ['memory', memory(node.memory / 1048576)],
    ['pods bound lately', node.recentPods],
    node.load && ['score', node.load.score],
    ...(node.load?.costs ?? []).map(cost => [cost.text, `${decimal(cost.points)} points`]),
    row?.unplaced > 0 && ['units on no GPU yet', row.unplaced],
    node.bands?.cpu !== undefined && ['band for pods without GPUs', `${node.bands.cpu} of 0 to 7`],
    node.bands?.gpu !== undefined && ['band for pods with GPUs', `${node.bands.gpu} of 0 to 7`],
  ];
  return html`<${Facts} facts=${facts} />
    ${node.backedOff && html`<p class="notice">Backed off: no GPU pods of some or all namespaces for a while, because
      its kubelet refused several.</p>`}
    ${node.load ? html`<${LoadTables} load=${node.load} />` : html`<p class="notice">There is no Node of this name:
      only claims of pods name it.</p>`}
    <h2>${node.cards.length ? counted(node.cards.length, 'GPU') : 'No GPUs'}</h2>
    ${node.cards.length > 0 && html`<${Bases} cards=${node.cards} /><${CardBars} cards=${node.cards} /><${Charges} cards=${node.cards} />`}`;
}

/** Limits and terms, of a node's page and of an explanation. */
export function LoadTables({ load }) {
  const pod = load.limits.some(limit => limit.pod) || load.terms.some(term => term.pod);
  const age = ({ reading }) => (reading.status === 'fresh'
    ? (reading.ageSeconds === undefined ? '–' : span(reading.ageSeconds))
    : words(reading.status));
  const thousandths = fraction => (fraction === undefined ? null : fraction * 1000);
  const table = (head, parts, ...columns) => parts.length > 0 && html`<${Table} rows=${parts} keyOf=${part => part.metric} columns=${[
    [head, ({ metric }) => html`<${MetricName} name=${metric} />`, 'name'],
    ['Load', part => html`<${LoadBar} reading=${thousandths(part.reading.value)} inFlight=${thousandths(part.inFlight ?? 0)}
      pod=${thousandths(part.pod ?? 0)} max=${thousandths(part.max)} over=${part.outcome === 'exceeded'} />`, 'wide'],
    ...columns,
    ['Age', age, 'number'],
  ]} />`;
  return html`${table('Limit', load.limits,
      ['Reading', limit => share(limit.reading.value), 'number'],
      ['In flight', limit => share(limit.inFlight), 'number'],
      pod && ['The pod', limit => share(limit.pod), 'number'],
      ['Limit', limit => share(limit.max), 'number'],
      ['Outcome', limit => html`<span class=${limit.outcome === 'exceeded' || limit.outcome === 'unknown-rejected' ? 'over-text' : ''}>${
        words(limit.outcome)}</span>`],
    )}
    ${table('Term of the score', load.terms,
      ['Share', term => share(term.share), 'number'],
      ['Typical', term => share(term.typical), 'number'],
      ['Points', term => (term.points === undefined ? '–' : decimal(term.points)), 'number'],
    )}`;
}

export function Cards({ cluster, settings, theme }) {
  if (cluster.cards === 0) {
    return html`<${View} title="GPUs" legend="No node reports GPUs. Nodes with GPUs need the device plugin of Plimsoll." />`;
  }
  const small = cluster.cards <= MOST_BARS;
  return html`<${View} title="GPUs" legend=${small
    ? 'Each bar is a GPU, stacked by pod: what is held. The line below it is the memory in use, as last measured.'
    : 'Each cell is a GPU: units held of all its units.'}>
    <${Capacity} cluster=${cluster} />
    ${small ? html`<${AllBars} />` : html`<${CardMap} cluster=${cluster} settings=${settings} theme=${theme} />`}
  <//>`;
}

function Capacity({ cluster }) {
  const sum = useMemo(() => capacity(cluster.nodes), [cluster.nodes]);
  const got = useAnswer('/v1/capacity', 15, JSON.stringify({ sizes: sizes(cluster.nodes) }));
  const bySize = (got.answer ?? []).map(({ size, total }) => ({ size, pods: total.pods, stranded: total.freeUnits - total.pods * size }));
  const free = got.answer?.[0]?.total.freeUnits ?? 0;
  const out = [
    sum.unhealthy && `${counted(sum.unhealthy, 'GPU')} unhealthy`,
    sum.closed && `${counted(sum.closed, 'GPU')} closed`,
    sum.backedOff && `${counted(sum.backedOff, 'node')} backed off`,
    sum.unitless && `${counted(sum.unitless, 'GPU')} without units`,
  ].filter(Boolean);
  return html`<${Facts} facts=${[
      ['GPUs', count(sum.cards)],
      ['units', count(sum.units)],
      ['held', share(sum.units ? sum.held / sum.units : null)],
      ['memory in use', sum.measured ? share(sum.used / sum.measured) : 'not measured'],
      ['compute held', share(sum.cores / sum.cards / 100)],
      ['free on open GPUs', counted(free, 'unit')],
    ]} />
    <h2>Still fits</h2>
    <p class="legend">Pods of one size that fit now, and free units that such pods cannot use (stranded).
      By GPUs alone: CPU, memory, taints and load may let fewer pods in.${out.length > 0 && ` Left out: ${out.join(', ')}.`}</p>
    <${Awaited} ...${got} what="what still fits" />
    <${Table} compact rows=${[
      ['still fit', one => html`<b>${count(one.pods)}</b>`],
      ['stranded', one => count(one.stranded)],
      ['of what is free', one => (free ? share(one.stranded / free) : '–')],
    ]} columns=${[
      ['Pods of', ([title]) => title, 'name'],
      ...bySize.map(one => [counted(one.size, 'unit'), ([, cell]) => cell(one), 'number']),
      ['a whole GPU', ([, cell]) => cell(sum.whole), 'number'],
    ]} />`;
}

function AllBars() {
  const got = useAnswer('/v1/cards', 4);
  const nodes = got.answer?.nodes ?? [];
  const all = nodes.flatMap(node => node.cards);
  return html`<${Awaited} ...${got} what="GPUs" />${all.length > 0 && html`<${Bases} cards=${all} />`}
    ${nodes.map(node => html`<section key=${node.name}>
    <h2><${NodeLink} name=${node.name} /></h2>
    <${CardBars} cards=${node.cards} all=${all} />
  </section>`)}`;
}

/** How a charge is drawn. */
const LOOKS = {
  recorded: 'held', chosen: 'reserved', claimed: 'reserved', nominated: 'reserved',
  'unknown-place': 'doubtful', 'unproven-claim': 'doubtful', unmanaged: 'unmanaged', 'resource-claim': 'held',
};

function lookOf(charge) {
  return LOOKS[charge.basis] ?? 'doubtful';
}

/** What the patterns mean that these cards show. */
function Bases({ cards }) {
  const texts = { reserved: 'reserved, not yet in the kubelet’s records', doubtful: 'GPU in doubt: counts on every GPU of its node', unmanaged: 'memory of no pod' };
  const shown = new Set(cards.flatMap(card => card.charges.map(lookOf)));
  return html`<p class="legend keys">${Object.entries(texts).filter(([look]) => shown.has(look)).map(([look, text]) => html`<span><i
    class=${`charge sample ${look}`}></i> ${text}</span> `)}<span><i class="used sample"></i> memory in use</span>
    ${namespacesOf(cards).slice(0, 12).map((name, i) => html`<span key=${name}><i class="charge sample" style=${hue(i)}></i> ${name}</span>`)}</p>`;
}

/** The namespaces of what is charged on cards. Each has one of eight hues, by its place here. */
function namespacesOf(cards) {
  return [...new Set(cards.flatMap(card => card.charges.map(charge => charge.namespace)))].filter(Boolean).sort();
}

function hue(i) {
  return { '--hue': [250, 55, 150, 320, 95, 200, 20, 285][i % 8] ?? 250 };
}

/** GPUs as bars. `all`: the GPUs of the whole view, so that a namespace has one hue in it. */
function CardBars({ cards, all = cards }) {
  const namespaces = namespacesOf(all);
  return html`<ul class="cards">${cards.map(card => html`<li key=${card.uuid} class="card">
    <span class="title" title=${card.uuid}>${card.index} <span class="muted">${card.model}</span></span>
    <span class="stack">
      <ul class="charges">${charges(card, namespaces)}</ul>
      ${card.used !== undefined && html`<span class="line" aria-hidden="true"><i class="used" style=${{ width: `${Math.min(100, (card.used / card.memory) * 100)}%` }}></i></span>`}
    </span>
    <span class="text">${card.units - card.free} of ${counted(card.units, 'unit')}${
      card.freeCores < 100 && `, ${100 - card.freeCores}% of compute`}${
      ['mps', 'mixed'].includes(card.sharing) && `, shared by ${card.sharing === 'mps' ? 'MPS' : 'MPS and by turns'}`}${
      card.mpsClients && card.mostMpsClients && `, ${card.mpsClients} of ${counted(card.mostMpsClients, 'client')}`}${
      card.used !== undefined && html`<span class="muted">, ${memoryOf(card.used, card.memory)} in use</span>`}${
      !card.healthy && html` <b class="over-text">unhealthy</b>`}${card.closed && html` <b class="over-text">${`closed: ${words(card.closed)}`}</b>`}</span>
  </li>`)}</ul>`;
}

function keyOf({ card, charge }) {
  return `${card.index}/${charge.namespace}/${charge.name}/${charge.resourceClaim ?? ''}`;
}

function charges(card, namespaces) {
  const all = Math.max(card.units, card.charges.reduce((sum, charge) => sum + charge.units, 0));
  return card.charges.map(charge => {
    const text = `${holderOf(charge)}: ${counted(charge.units, 'unit')}${charge.memory ? ` (${charge.memory} MiB)` : ''}${charge.cores ? `, ${charge.cores}% of compute` : ''}, ${words(charge.basis)}`;
    return html`<li key=${keyOf({ card, charge })} title=${text} class=${`charge ${lookOf(charge)}`}
      style=${{ width: `${(charge.units / all) * 100}%`, ...hue(namespaces.indexOf(charge.namespace)) }}>
      ${charge.namespace && !charge.resourceClaim ? html`<a href=${address('pod', charge.namespace, charge.name)} aria-label=${text}>${charge.name}</a>`
        : html`<span aria-label=${text} role="img">${charge.name || 'no pod'}</span>`}
    </li>`;
  });
}

/** The pod or ResourceClaim of a charge. */
function holderOf(charge) {
  const name = charge.namespace ? `${charge.namespace}/${charge.name}` : charge.name || 'no pod';
  return charge.resourceClaim ? `ResourceClaim ${name}` : name;
}

/** What the bars show by colour and width. */
function Charges({ cards }) {
  const rows = cards.flatMap(card => card.charges.map(charge => ({ card, charge })));
  if (rows.length === 0) return null;
  return html`<${Table} rows=${rows} keyOf=${keyOf} columns=${[
    ['Pod', ({ charge }) => (charge.namespace && !charge.resourceClaim ? html`<${PodLink} pod=${charge} />` : holderOf(charge)), 'name'],
    ['GPU', ({ card }) => card.index, 'number'],
    ['Units', ({ charge }) => charge.units, 'number'],
    ['Compute', ({ charge }) => (charge.cores ? `${charge.cores}%` : '–'), 'number'],
    ['Basis', ({ charge }) => words(charge.basis)],
  ]} />`;
}

/** The code of a GPU: unhealthy is marked as over, closed or without units as unknown. */
function codeOfCard(card) {
  if (card.unhealthy) return OVER;
  if (card.closed || !card.units) return UNKNOWN;
  return codeOf(Math.min(1, heldPart(card)));
}

function heldPart(card) {
  return card.units ? card.held / card.units : null;
}

function stateOf(card) {
  return [card.unhealthy && 'unhealthy', card.closed && 'closed', !card.units && 'no units'].filter(Boolean).join(', ');
}

const BY_HELD = { label: 'units held', over: 'unhealthy', absent: 'closed or no units', value: heldPart, code: codeOfCard };

function CardMap({ cluster, settings, theme }) {
  const items = useMemo(() => cluster.nodes.flatMap(row => row.cards), [cluster.nodes]);
  return html`<h2>GPUs by units held</h2>
    <${Explorer} noun="GPU" measure=${BY_HELD} items=${items} grouping=${['model', card => card.model]}
      settings=${settings} theme=${theme}
      describe=${card => [`GPU ${card.index} of ${card.node}, ${card.model}: ${card.held} of ${counted(card.units, 'unit')} held by ${counted(card.pods, 'pod')}`,
        card.used !== null && `${memoryOf(card.used, card.memory)} in use`, stateOf(card)].filter(Boolean).join('; ')}
      open=${card => { location.hash = address('node', card.node); }}
      columns=${[
        ['Node', card => html`<${NodeLink} name=${card.node} />`, 'name'],
        ['GPU', card => card.index, 'number'],
        ['Model', card => card.model],
        ['Held', card => share(heldPart(card)), 'number'],
        ['Units', card => `${card.held} of ${card.units}`, 'number'],
        ['Pods', card => card.pods, 'number'],
        ['Memory in use', card => memory(card.used), 'number'],
        ['Remarks', card => stateOf(card), 'remarks'],
      ]} />`;
}
