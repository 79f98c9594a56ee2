// Pods: those that wait and why, the last decisions, and everything about one decision.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { ask, useAnswer } from './state.js';
import {
  Awaited, count, counted, decimal, Facts, Find, html, memory,
  MoreButton, NodeLink, PodLink, reasonText, span, Table, Time, View, words,
} from './elements.js';
import { LoadTables } from './nodes.js';

const PAGE = 100;
const BEST = 10;
/** With more nodes, those that the decision names are asked for first. */
const MANY_NODES = 500;

export function asksText(asks) {
  if (!asks) return '';
  const parts = [asks.exclusive ? counted(asks.count, 'whole GPU') : asks.inMib ? `${asks.units} MiB` : counted(asks.units, 'unit')];
  if (!asks.exclusive && asks.count > 1) parts.push(`on each of ${counted(asks.count, 'GPU')}`);
  if (asks.cores) parts.push(`with ${asks.cores}% of compute`);
  return parts.join(' ');
}

/** Waiting pods in groups of one workload, those that wait longest first. `now`: in seconds since 1970. */
export function grouped(decisions, now) {
  const waiting = decisions.map(one => ({ ...one, waits: now - Date.parse(one.time) / 1000 + one.waitedSeconds }));
  const groups = {};
  for (const one of waiting.sort((a, b) => b.waits - a.waits)) {
    const { pod, workload } = one;
    (groups[JSON.stringify([pod.namespace, workload?.kind, workload?.name ?? pod.name])] ??= []).push(one);
  }
  return Object.entries(groups);
}

export function Pending() {
  const got = useAnswer('/v1/pending', 4);
  const { answer } = got;
  const groups = useMemo(() => (answer ? grouped(answer.decisions, Date.parse(answer.time) / 1000) : []), [answer]);
  const [shown, setShown] = useState(PAGE);
  return html`<${View} title="Pending" legend=${html`Pods without a node that the extender was asked about, by workload, as decided at
    their last try. Each is shown by its pod that no node takes and that waits longest. All pods without a node: <code>kubectl plimsoll pending</code>.`}>
    <${Awaited} ...${got} what="pending pods" />
    ${answer && groups.length === 0 && html`<p>No pod waits that the extender was asked about.</p>`}
    ${groups.slice(0, shown).map(([key, pods]) => html`<${PendingGroup} key=${key} pods=${pods} />`)}
    <${MoreButton} shown=${shown} all=${groups.length} noun="workload" more=${() => setShown(shown + PAGE)} />
  <//>`;
}

function PendingGroup({ pods }) {
  const first = pods.find(one => one.accepted === 0) ?? pods[0];
  return html`<section class="pending">
    <h2><span class="muted">${first.pod.namespace} · ${first.workload?.kind}</span> ${first.workload?.name ?? first.pod.name}
      ${' '}<span class="aside">${counted(pods.length, 'pod')}, longest ${span(pods[0].waits)}${first.asks && `, asks for ${asksText(first.asks)}`}</span></h2>
    ${first.fault && html`<p class="over-text">Can never fit: ${first.fault}.</p>`}
    ${first.fitsIf && !first.fault && html`<p>Fits if: ${first.fitsIf}.</p>`}
    ${first.accepted > 0 && html`<p>${count(first.accepted)} of ${counted(first.nodes, 'node')} may take it: kube-scheduler has not bound it yet.</p>`}
    ${first.reasons.length > 0 && html`<ul class="reasons">${first.reasons.map(({ reason, nodes }) => html`<li>
      <b>${counted(nodes, 'node')}</b> ${reasonText(reason)}</li>`)}</ul>`}
    <p class="pods">${pods.slice(0, 12).flatMap(one => [html`<span key=${one.pod.uid}><${PodLink} pod=${one.pod} bare /> <span class="muted">${span(one.waits)}</span></span>`, ' '])}${
      pods.length > 12 && html`<span class="muted">and ${count(pods.length - 12)} more</span>`}</p>
  </section>`;
}

export function matches(decided, text) {
  const wanted = text.toLowerCase();
  const { pod, node, workload, best, reasons, fault } = decided;
  return [`${pod.namespace}/${pod.name}`, node, workload && `${workload.kind}/${workload.name}`, fault,
    ...best.map(one => one.node), ...reasons.map(one => one.reason)].some(part => part?.toLowerCase().includes(wanted));
}

export function Decisions({ settings }) {
  const got = useAnswer('/v1/decisions?limit=1000', 4);
  const { answer } = got;
  const find = settings.get('find') ?? '';
  const [shown, setShown] = useState(PAGE);
  const list = useMemo(() => (answer?.decisions ?? []).filter(one => matches(one, find)), [answer, find]);
  return html`<${View} title="Decisions" legend="What was decided for the last thousand pods, the newest first. The score is the node’s, 0 to 100; the runner-up is the best other node.">
    <form class="controls" onSubmit=${event => event.preventDefault()}>
      <${Find} find=${find} hint="pod, node, workload or reason" />
      <span class="muted" role="status">${answer && `${count(list.length)} of ${count(answer.decisions.length)}`}</span>
    </form>
    <${Awaited} ...${got} what="decisions" />
    ${list.length > 0 && html`<${Table} rows=${list.slice(0, shown)} keyOf=${one => one.pod.uid} columns=${DECISION_COLUMNS} />`}
    <${MoreButton} shown=${shown} all=${list.length} noun="decision" more=${() => setShown(shown + 300)} />
  <//>`;
}

const DECISION_COLUMNS = [
  ['Time', Time, 'number'],
  ['Pod', ({ pod }) => html`<${PodLink} pod=${pod} />`, 'name'],
  ['Node', ({ node }) => (node ? html`<${NodeLink} name=${node} />` : html`<b class="over-text">waits</b>`)],
  ['Score', ({ score, better }) => html`${score ?? '–'}${better > 0 && html`<span class="muted" title="nodes with a better score">, ${better} better</span>`}`, 'number'],
  ['Runner-up', ({ best: [second] }) => (second ? html`<${NodeLink} name=${second.node} /> <span class="muted">${second.score}</span>` : '–')],
  ['GPUs', ({ cards }) => (cards?.length ? cards.join(', ') : '–'), 'number'],
  ['Accepted', ({ accepted, nodes }) => `${count(accepted)} of ${count(nodes)}`, 'number'],
  ['Why others may not take it', ({ fault, reasons: [first, ...others] }) => fault ?? (first
    && `${counted(first.nodes, 'node')}: ${reasonText(first.reason)}${others.length ? ` (+${others.length})` : ''}`), 'remarks'],
];

/** How far a node is from taking the pod, by limits that are exceeded and cards that lack: 0 takes it. */
export function distance(node) {
  if (node.accepted) return 0;
  let far = 0;
  for (const limit of node.load?.limits ?? []) {
    const load = (limit.reading.value ?? 1) + (limit.inFlight ?? 0) + (limit.pod ?? 0);
    if (limit.outcome === 'exceeded') far += load / limit.max - 1;
    if (limit.outcome === 'unknown-rejected') far += 1;
  }
  if (node.cards && (node.cards.chosen ?? []).length === 0) {
    const { asked, count: wanted = 1, cards } = node.cards;
    const fits = cards.filter(card => card.outcome === 'fits').length;
    const most = cards.reduce((free, card) => Math.max(free, card.free), 0);
    far += wanted > 1 ? (wanted - fits) / wanted : 1 - Math.min(most, asked) / Math.max(1, asked);
    if (cards.length === 0) far += 10;
  }
  return far + (far === 0 ? 20 : 0);
}

/** Nodes in the order in which they matter: the pod's own, the best, then the nearest misses. */
export function ranked(explanation) {
  const own = node => node.name === explanation.node;
  const far = new Map(explanation.nodes.map(node => [node, distance(node)]));
  return [...explanation.nodes].sort((a, b) => own(b) - own(a) || b.accepted - a.accepted
    || (a.accepted ? b.score - a.score : far.get(a) - far.get(b)) || (a.name < b.name ? -1 : 1));
}

export function PodPage({ parts: [, namespace = '', name = '', uid], cluster }) {
  const [fresh, setFresh] = useState(false);
  const [all, setAll] = useState(false);
  const [tries, setTries] = useState(0);
  const [shown, setShown] = useState({ explanation: null, error: null });
  const few = cluster.nodes.length <= MANY_NODES;
  useEffect(() => {
    const stop = new AbortController();
    async function explain() {
      try {
        const decided = await decisionOf({ namespace, name, uid }, stop.signal);
        const names = few || all ? undefined : namesOf(decided);
        const body = { namespace, name, uid, fresh, nodeNames: names };
        const explanation = await ask('/explain', stop.signal, {
          method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body),
        });
        setShown({ explanation, decided, partly: names !== undefined, error: null });
      } catch (error) {
        if (!stop.signal.aborted) setShown({ explanation: null, error });
      }
    }
    explain();
    return () => stop.abort();
  }, [fresh, few || all, tries]);

  return html`<${View} title=${`Pod ${namespace}/${name}`} legend="What was decided about it, node by node: its own node first, then the best ones, then the nearest misses.">
    <p class="controls">
      <label><input type="checkbox" checked=${fresh} onChange=${event => setFresh(event.target.checked)} /> as it would be decided now</label>
      <button type="button" onClick=${() => setTries(tries + 1)}>Ask again</button>
    </p>
    ${shown.explanation ? html`<${Explained} ...${shown} showAll=${() => setAll(true)} />`
      : html`<${Awaited} error=${shown.error} what="the explanation" />`}
  <//>`;
}

/** The decision in short; undefined if it is none of the last thousand, or cannot be had. */
async function decisionOf({ namespace, name, uid }, signal) {
  const { decisions } = await ask('/v1/decisions?limit=1000', signal).catch(() => ({ decisions: [] }));
  return decisions.find(({ pod }) => pod.namespace === namespace && pod.name === name && (!uid || pod.uid === uid));
}

function namesOf(decided) {
  if (!decided) return undefined;
  const names = [decided.node, ...decided.best.map(one => one.node), decided.nearest?.node].filter(Boolean);
  return names.length ? [...new Set(names)] : undefined;
}

function Explained({ explanation, decided, partly, showAll }) {
  const [every, setEvery] = useState(false);
  const { estimate } = explanation;
  const list = useMemo(() => ranked(explanation), [explanation]);
  const accepted = list.filter(node => node.accepted).length;
  const kept = every || list.length <= 2 * BEST ? list : [...list.slice(0, Math.min(accepted, BEST)), ...list.slice(accepted, accepted + BEST)];
  return html`
    <${Facts} facts=${[
      ['node', explanation.node ? html`<${NodeLink} name=${explanation.node} />` : html`<span class="over-text">none yet</span>`],
      [explanation.basis === 'decision' ? 'decided' : 'as of now', html`<${Time} time=${explanation.time} />`],
      decided?.asks && ['asks for', asksText(decided.asks)],
      estimate && ['will use CPU', html`${decimal(estimate.cpu.amount)} cores <small>${estimate.cpu.source}</small>`],
      estimate && ['will use memory', html`${memory(estimate.memory.amount / 1048576)} <small>${estimate.memory.source}</small>`],
    ]} />
    ${explanation.fault && html`<p class="notice over-text">No node may take it: ${explanation.fault}.</p>`}
    ${explanation.basis === 'decision' && !explanation.node && decided?.fitsIf && !explanation.fault && html`<p>Fits if: ${decided.fitsIf}.</p>`}
    ${!partly && html`<h2>${count(accepted)} of ${counted(list.length, 'node')} may take it</h2>`}
    ${partly && html`<h2>Nodes that the decision names</h2><p class="legend">${count(decided.accepted)} of ${counted(decided.nodes, 'node')} may take it. ${' '}
      <button type="button" onClick=${showAll}>Ask for all nodes</button></p>`}
    <div class="verdicts">${kept.map((node, i) => html`<${Verdict} key=${node.name} node=${node} open=${i === 0} own=${node.name === explanation.node} />`)}</div>
    ${kept.length < list.length && html`<p><button type="button" onClick=${() => setEvery(true)}>Show all ${count(list.length)} nodes</button></p>`}`;
}

function Verdict({ node, open, own }) {
  const [opened, setOpened] = useState(open);
  const verdict = !node.accepted ? '✗ may not take it' : node.passesOverLimit ? '≈ passes over its limit' : '✓ may take it';
  return html`<details open=${opened} onToggle=${event => setOpened(event.currentTarget.open)}>
    <summary><span class="name">${node.name}</span>${own && html` <b>its node</b>`}
      ${' '}<span class=${node.accepted ? '' : 'over-text'}>${verdict}</span>
      ${' '}<span class="muted">score ${node.score}</span>
      ${' '}<span class="why">${node.known ? node.reasons.map(reasonText).join('; ') : 'the extender does not know this node'}</span></summary>
    ${opened && html`<div class="inputs">
      <p><${NodeLink} name=${node.name} /> <span class="muted">extender score ${node.extenderScore}${node.load && `; by load ${node.load.score}${(node.load.costs ?? []).map(cost => `, ${cost.text} ${decimal(cost.points)} points`).join('')}`}${
        node.cards && `; by cards ${node.cards.score}`}${node.costToCards !== undefined && `; makes ${decimal(node.costToCards / 1e6)} of a card more useless than on the cheapest node`}</span></p>
      ${node.load && html`<${LoadTables} load=${node.load} />`}
      ${node.cards && html`<${CardsTable} cards=${node.cards} />`}
    </div>`}
  </details>`;
}

function CardsTable({ cards }) {
  const chosen = new Set(cards.chosen ?? []);
  if (cards.cards.length === 0) return html`<p class="muted">The node reports no GPUs.</p>`;
  return html`<${Table} rows=${cards.cards} keyOf=${card => card.index} columns=${[
    ['GPU', card => `${card.index} ${card.model}`, 'name'],
    ['Free', card => `${card.free} of ${card.units}`, 'number'],
    ['Compute free', card => `${card.freeCores}%`, 'number'],
    ['Outcome', card => html`${words(card.outcome)}${chosen.has(card.index) && html` <b>chosen</b>`}`],
    ['Held by', card => (card.charges ?? []).map(charge => `${charge.units} ${charge.resourceClaim ?? (charge.pod ? charge.pod.slice(0, 8) : 'unmanaged')}`).join(', '), 'remarks'],
  ]} />
  ${cards.cost !== undefined && chosen.size > 0 && html`<p class="legend">The placement costs ${decimal(cards.cost / 1e6)} of a GPU that it makes useless for future pods.</p>`}`;
}
