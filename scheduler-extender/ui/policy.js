// The policy in force, the shadow policy beside it, and whether what the page shows can be trusted.

import { useMemo } from 'preact/hooks';
import { readingAge } from './nodes.js';
import { useAnswer } from './state.js';
import {
  Awaited, clock, count, counted, Facts, html, NodeLink, PodLink, Table, Time, View,
} from './elements.js';

export function Policy() {
  const got = useAnswer('/v1/policy', 10);
  return html`<${View} title="Policy" legend="The policy in force with all defaults filled in, and the shadow policy beside it.">
    <${Awaited} ...${got} what="the policy" /><${Refused} ...${got} />
    ${got.answer && html`<${InForce} check=${got.answer} />`}
    <${Shadow} />
  <//>`;
}

function Refused({ answer }) {
  return answer?.refused && html`<p class="notice" role="status"><b class="over-text">▲ The newest policy is refused:</b> ${answer.refused}. The policy before stays in force.</p>`;
}

function InForce({ check }) {
  const { facts, lists } = fields(check.policy.spec);
  return html`
    ${check.warnings.length > 0 && html`<h2>${counted(check.warnings.length, 'warning')}</h2>
      <ul class="reasons">${check.warnings.map(warning => html`<li>${warning}</li>`)}</ul>`}
    <h2>Rules</h2>
    <${Facts} kind="rules fields" facts=${facts} />
    ${lists.map(([name, rows]) => html`<h2>${name}</h2><${Table} rows=${rows} columns=${columns(rows)} />`)}`;
}

/** The fields of an object: each single value as a fact by its path, each list of objects as a table. */
export function fields(value, path = '') {
  const found = { facts: [], lists: [] };
  for (const [name, field] of Object.entries(value)) {
    const at = path + name;
    if (Array.isArray(field) && field.some(isObject)) found.lists.push([at, field]);
    else if (isObject(field)) {
      const { facts, lists } = fields(field, `${at}.`);
      found.facts.push(...facts);
      found.lists.push(...lists);
    } else if (text(field)) found.facts.push([at, text(field)]);
  }
  return found;
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A value in one line, as `name: cpu, limit: 0.8`. */
function text(value) {
  if (Array.isArray(value)) return value.map(text).join(value.some(isObject) ? '; ' : ', ');
  if (isObject(value)) return named(Object.keys(value)).map(key => `${key}: ${text(value[key])}`).join(', ');
  return value === null ? '' : String(value);
}

/** What an object is called comes first. */
function named(keys) {
  return ['name', 'names', 'namespaces'].filter(key => keys.includes(key)).concat(keys.filter(key => !/^name(s|spaces)?$/.test(key)));
}

function columns(rows) {
  const keys = named([...new Set(rows.flatMap(Object.keys))]);
  const kind = key => (key === 'name' ? 'name' : rows.some(row => typeof row[key] === 'number') && 'number');
  return keys.map(key => [key, row => (row[key] === undefined ? '–' : text(row[key])), kind(key) || undefined]);
}

function Shadow() {
  const got = useAnswer('/shadow', 10);
  const pods = got.answer?.pods ?? [];
  const differing = pods.filter(pod => pod.differs.length > 0);
  const differingIn = what => count(differing.filter(pod => pod.differs.includes(what)).length);
  return html`<h2>Shadow policy ${got.answer && html`<span class="aside">${count(differing.length)} of ${counted(pods.length, 'pod')} of the last hour differ:
      ${' '}${differingIn('filter')} in which nodes may take it, ${differingIn('score')} in which node is best</span>`}</h2>
    ${got.error?.status === 404 ? html`<p class="muted">There is none.</p>` : html`<${Awaited} ...${got} what="the shadow policy" />`}
    ${differing.length > 0 && html`<${Table} rows=${differing.slice(0, 100)} keyOf=${one => one.pod.uid} columns=${[
      ['Time', Time, 'number'],
      ['Pod', one => html`<${PodLink} pod=${one.pod} />`, 'name'],
      ['Node', one => (one.node ? html`<${NodeLink} name=${one.node} />` : '–')],
      ['Policy’s best', one => bestText(one.policy)],
      ['Shadow’s best', one => bestText(one.shadow)],
      ['Policy rejects', one => rejectedText(one.policy, one.nodes), 'number'],
      ['Shadow rejects', one => rejectedText(one.shadow, one.nodes), 'number'],
    ]} />`}`;
}

function bestText(choice) {
  if (choice.bestNodes === 0) return 'none';
  const more = choice.bestNodes - 1;
  return `${choice.best[0]}${more > 0 ? ` and ${count(more)} more` : ''}, ${choice.bestScore}`;
}

function rejectedText(choice, nodes) {
  const alone = choice.rejectedAlone > 0 ? `, ${count(choice.rejectedAlone)} alone` : '';
  return `${count(choice.rejected)} of ${count(nodes)}${alone}`;
}

const MOST = 50;

/** What needs a look, each kind with its meaning. */
export function findings({ nodes, metrics: { length: metrics } }) {
  const rows = (test, text) => nodes.filter(test).map(row => ({ row, text: text?.(row) }));
  const cards = key => nodes.flatMap(row => row.cards.filter(card => card[key]).map(card => ({ row, text: `GPU ${card.index}` })));
  return [
    ['Over a limit', 'no new pods while another node is below its limits', rows(row => row.limitRatio > 1000)],
    ['Without any reading', 'no metric has a fresh one: look at exporter and annotator', rows(row => metrics > 0 && row.missing === metrics)],
    ['With readings missing or stale', 'some metrics have no fresh one', rows(row => row.missing > 0 && row.missing < metrics, row => `${row.missing} of ${metrics}`)],
    ['Backed off', 'no GPU pods for a while, because their kubelet refused several', rows(row => row.backedOff)],
    ['Unhealthy GPUs', 'no new pods', cards('unhealthy')],
    ['Closed GPUs', 'no new pods: the node’s page says why', cards('closed')],
    ['Units on no GPU yet', 'of pods that are bound and not admitted', rows(row => row.unplaced > 0, row => counted(row.unplaced, 'unit'))],
  ];
}

export function Health({ cluster, at }) {
  const { replica } = cluster;
  const got = useAnswer('/v1/policy', 10);
  const kinds = useMemo(() => findings(cluster), [cluster.nodes]);
  const oldest = useMemo(() => cluster.nodes.filter(row => row.readAt !== null).sort((a, b) => a.readAt - b.readAt)[0], [cluster.nodes]);
  return html`<${View} title="Health" legend="Whether what this page shows can be trusted, and what is out.">
    <${Refused} ...${got} />${got.error && html`<${Awaited} ...${got} what="the policy" />`}
    <${Facts} kind="rules" facts=${[
      ['replica', `${replica.name || 'the only one'}, version ${replica.program}`],
      ['leads', replica.leads ? 'yes' : `no: GPUs set aside for pods that are being bound are not shown. ${replica.leader ?? 'No other'} leads.`],
      ['complete', replica.complete ? 'yes' : 'no: not all nodes and pods were listed yet'],
      ['last answer', `${clock(at)}, as of ${clock(cluster.time * 1000)} by the extender’s clock`],
      ['nodes', `${count(cluster.nodes.length)}, with ${counted(cluster.cards, 'GPU')}`],
      ['oldest reading', oldest ? html`${readingAge(oldest, cluster)} on ${' '}<${NodeLink} name=${oldest.name} />` : 'none'],
    ]} />
    ${kinds.map(([title, meaning, list]) => html`<section key=${title}>
      <h2>${list.length === 0 ? '✓' : '▲'} ${title} <span class="aside">${list.length === 0 ? 'none' : `${count(list.length)} – ${meaning}`}</span></h2>
      ${list.length > 0 && html`<p class="pods">${list.slice(0, MOST).flatMap(({ row, text }) => [html`<span key=${row.name + text}><${NodeLink} name=${row.name} />${text && html` <span class="muted">${text}</span>`}</span>`, ' '])}${
        list.length > MOST && html`<span class="muted">and ${count(list.length - MOST)} more</span>`}</p>`}
    </section>`)}
  <//>`;
}
