// Nodes by load: rows in a small cluster, a heat map in a large one. And the page of one node.

import { useAnswer } from './state.js';
import { Bases, CardBars, Charges } from './cards.js';
import {
  address, Awaited, counted, decimal, Facts, html, LoadBar, memory, MetricName,
  NodeLink, PartBar, percent, setSetting, share, span, Table, View, words,
} from './elements.js';
import { loadText, measures } from './measures.js';
import { Explorer } from './heatmap.js';

const MOST_ROWS = 60;
const MOST_METRICS = 6;

export function Nodes({ cluster, settings, theme }) {
  if (cluster.nodes.length <= MOST_ROWS) return html`<${NodeRows} cluster=${cluster} />`;
  return html`<${NodeMap} cluster=${cluster} settings=${settings} theme=${theme} />`;
}

/** What is remarkable about a node, in words. */
function marks(row, cluster) {
  const unhealthy = row.cards.filter(card => card.unhealthy).length;
  const closed = row.cards.filter(card => card.closed).length;
  return [
    row.limitRatio > 1000 && 'over its limit',
    row.missing > 0 && `${row.missing} of ${cluster.metrics.length} readings missing`,
    row.backedOff && 'backed off: no GPU pods for a while',
    unhealthy > 0 && `${counted(unhealthy, 'card')} unhealthy`,
    closed > 0 && `${counted(closed, 'card')} closed`,
    row.unplaced > 0 && `${counted(row.unplaced, 'unit')} on no card yet`,
  ].filter(Boolean);
}

/** How old the oldest reading is that counts. */
export function readingAge(row, cluster) {
  return row.readAt === null ? '–' : span(cluster.time - row.readAt);
}

function heldOf(row) {
  const units = row.cards.reduce((sum, card) => sum + card.units, 0);
  const held = row.cards.reduce((sum, card) => sum + card.held, 0);
  return { held, units, part: units ? (held / units) * 1000 : null };
}

function NodeRows({ cluster }) {
  const metrics = cluster.metrics.slice(0, MOST_METRICS);
  const left = cluster.metrics.length - metrics.length;
  const hasZones = cluster.nodes.some(row => row.zone !== null);
  return html`<${View} title="Nodes" legend=${html`Load of ${counted(cluster.nodes.length, 'node')}. A tick${' '}<i
    class="sample tick"></i> is the limit (node pools can have others), the hatched part${' '}<i class="sample flight"></i> belongs to pods that no
    reading shows yet, ▲ is over its limit. ${left > 0 && `A node’s page has ${counted(left, 'more metric')}.`}`}>
    <${Table} rows=${cluster.nodes} keyOf=${row => row.name} columns=${[
      ['Node', row => html`<${NodeLink} name=${row.name} />`, 'name'],
      hasZones && ['Zone', row => row.zone ?? '–'],
      ['Limit ratio', ratioOf, 'number'],
      ...metrics.map((metric, i) => [html`<${MetricName} name=${metric.name} />`, row => html`<${LoadBar} reading=${row.readings[i]}
        inFlight=${row.inFlight[i]} max=${metric.max === undefined ? null : metric.max * 1000} />`]),
      ['Score', row => row.score, 'number'],
      cluster.cards > 0 && ['GPU units held', row => (row.cards.length === 0 ? '–' : html`<${PartBar}
        part=${heldOf(row).part} text=${`${heldOf(row).held} of ${heldOf(row).units}`} />`)],
      ...lastColumns(cluster),
    ]} />
  <//>`;
}

function ratioOf(row) {
  return html`<b class=${row.limitRatio > 1000 ? 'over-text' : ''}>${percent(row.limitRatio)}</b>`;
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
      name=${row => row.name} settings=${settings} theme=${theme}
      describe=${row => [`${row.name}${row.zone === null ? '' : `, ${row.zone}`}: ${measure.text(row)}`, ...marks(row, cluster)].join('; ')}
      open=${row => { location.hash = address('node', row.name); }}
      columns=${[
        ['Node', row => html`<${NodeLink} name=${row.name} />`, 'name'],
        [measure.label, row => (measure.key === 'limit' ? limitText(row, cluster) : measure.text(row))],
        !byMetric && measure.key !== 'limit' && ['Limit ratio', ratioOf, 'number'],
        cluster.cards > 0 && ['GPU units held', row => (row.cards.length ? percent(heldOf(row).part) : '–'), 'number'],
        ['Zone', row => row.zone ?? '–'],
        ...lastColumns(cluster),
      ]}>
      <label>Colour <select onChange=${event => setSetting('by', event.target.value)}>
        ${[...new Set(all.map(one => one.group))].map(group => html`<optgroup label=${group}>${choices(group)}</optgroup>`)}
      </select></label>
    <//>
  <//>`;
}

/** "102% mem_usage_avg_5m 82%": without the limit, since the node's pool can have its own. */
function limitText(row, cluster) {
  const i = cluster.metrics.findIndex(metric => metric.name === row.limit);
  if (i < 0) return percent(row.limitRatio);
  return html`${ratioOf(row)} ${row.limit} ${loadText(row, i, null)}`;
}

export function NodePage({ parts: [, name = ''], cluster }) {
  const { answer, error } = useAnswer(`/v1/nodes/${encodeURIComponent(name)}`, 4);
  const row = cluster.byName.get(name);
  return html`<${View} title=${`Node ${name}`} legend=${html`Its load with an ordinary pod, and what its cards hold.
    ${' '}<a href=${`#/decisions?find=${encodeURIComponent(name)}`}>Decisions that name it</a>`}>
    ${answer === null ? html`<${Awaited} error=${error} what="the node" />` : html`<${Detail} node=${answer} row=${row} />`}
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
    node.load && ['hot value', decimal(node.load.hotValue)],
    row?.unplaced > 0 && ['units on no card yet', row.unplaced],
  ];
  return html`<${Facts} facts=${facts} />
    ${node.backedOff && html`<p class="notice">Backed off: no GPU pods of some or all namespaces for a while, because
      its kubelet refused several.</p>`}
    ${node.load ? html`<${LoadTables} load=${node.load} />` : html`<p class="notice">There is no Node of this name:
      only claims of pods name it.</p>`}
    <h2>${node.cards.length ? counted(node.cards.length, 'card') : 'No cards'}</h2>
    ${node.cards.length > 0 && html`<${Bases} cards=${node.cards} /><${CardBars} cards=${node.cards} /><${Charges} cards=${node.cards} />`}`;
}

/** Limits and terms, of a node's page and of an explanation. */
export function LoadTables({ load }) {
  const pod = load.limits.some(limit => limit.pod) || load.terms.some(term => term.pod);
  const of = part => (part.reading.value === undefined ? null : part.reading.value * 1000);
  const age = ({ reading }) => (reading.status === 'fresh'
    ? (reading.ageSeconds === undefined ? '–' : span(reading.ageSeconds))
    : words(reading.status));
  const name = ({ metric }) => html`<${MetricName} name=${metric} />`;
  const added = part => ((part.inFlight ?? 0) + (part.pod ?? 0)) * 1000;
  return html`${load.limits.length > 0 && html`<${Table} rows=${load.limits} keyOf=${limit => limit.metric} columns=${[
      ['Limit', name, 'name'],
      ['Load', limit => html`<${LoadBar} reading=${of(limit)} inFlight=${added(limit)} max=${limit.max * 1000} />`, 'wide'],
      ['Reading', limit => share(limit.reading.value), 'number'],
      ['In flight', limit => share(limit.inFlight), 'number'],
      pod && ['Pod', limit => share(limit.pod), 'number'],
      ['Limit', limit => share(limit.max), 'number'],
      ['Outcome', limit => html`<span class=${limit.outcome === 'exceeded' || limit.outcome === 'unknown-rejected' ? 'over-text' : ''}>${
        words(limit.outcome)}</span>`],
      ['Age', age, 'number'],
    ]} />`}
    ${load.terms.length > 0 && html`<${Table} rows=${load.terms} keyOf=${term => term.metric} columns=${[
      ['Term of the score', name, 'name'],
      ['Load', term => html`<${LoadBar} reading=${of(term)} inFlight=${added(term)} />`, 'wide'],
      ['Share', term => share(term.share), 'number'],
      ['Points', term => (term.points === undefined ? '–' : decimal(term.points)), 'number'],
      ['Age', age, 'number'],
    ]} />`}
    ${load.surplus && html`<p class="legend">Surplus: uses ${share(load.surplus.surplus)} of the node more than its requests
      use on average; ${share(load.surplus.counted)} is added to the load in scores.</p>`}`;
}
