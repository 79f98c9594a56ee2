// Whether what the page shows can be trusted: the replica, readings, cards and nodes that are out.

import { useMemo } from 'preact/hooks';
import { html, NodeLink, View } from './elements.js';
import { clock, count, counted } from './format.js';
import { readingAge } from './nodes.js';

const MOST = 50;

/** Nodes and cards that need a look, each kind with what it means. */
export function findings(cluster) {
  const cards = cluster.nodes.flatMap(row => row.cards.map(card => ({ row, card })));
  const metrics = cluster.metrics.length;
  const kinds = [
    ['Over a limit', 'take no new pods while another node is below its limits',
      cluster.nodes.filter(row => row.limitRatio > 1000).map(row => ({ row }))],
    ['Without any reading', 'no metric of the policy has a fresh reading: look at the exporter and the annotator',
      cluster.nodes.filter(row => metrics > 0 && row.missing === metrics).map(row => ({ row }))],
    ['With readings missing or stale', 'some metrics of the policy have no fresh reading',
      cluster.nodes.filter(row => row.missing > 0 && row.missing < metrics).map(row => ({ row, text: `${row.missing} of ${metrics}` }))],
    ['Backed off', 'take no GPU pods for a while, because their kubelet refused several',
      cluster.nodes.filter(row => row.backedOff).map(row => ({ row }))],
    ['Unhealthy cards', 'take no new pods',
      cards.filter(({ card }) => card.unhealthy).map(({ row, card }) => ({ row, text: `card ${card.index}` }))],
    ['Closed cards', 'work and take no new pods: the node’s page says why',
      cards.filter(({ card }) => card.closed).map(({ row, card }) => ({ row, text: `card ${card.index}` }))],
    ['Units on no card yet', 'of pods that are bound and not admitted',
      cluster.nodes.filter(row => row.unplaced > 0).map(row => ({ row, text: counted(row.unplaced, 'unit') }))],
  ];
  return kinds.map(([title, meaning, list]) => ({ title, meaning, list }));
}

export function Health({ cluster, at }) {
  const { replica } = cluster;
  const kinds = useMemo(() => findings(cluster), [cluster]);
  const oldest = useMemo(() => cluster.nodes.filter(row => row.readAt !== null).sort((a, b) => a.readAt - b.readAt)[0], [cluster]);
  return html`<${View} title="Health" legend="Whether what this page shows can be trusted, and what is out.">
    <dl class="rules">
      <div><dt>replica</dt><dd>${replica.name || 'the only one'}, version ${replica.program}</dd></div>
      <div><dt>leads</dt><dd>${replica.leads ? 'yes' : html`no: it does not know which cards are set aside for pods that are being bound. ${replica.leader ? `${replica.leader} leads.` : 'No leader is known.'}`}</dd></div>
      <div><dt>complete</dt><dd>${replica.complete ? 'yes: all nodes and pods were listed since it started' : 'no: not all nodes and pods were listed yet, and cards may look emptier than they are'}</dd></div>
      <div><dt>last answer</dt><dd>${clock(at)}, as of ${clock(cluster.time * 1000)} by the extender’s clock</dd></div>
      <div><dt>nodes</dt><dd>${count(cluster.nodes.length)}, with ${counted(cluster.cards, 'card')}</dd></div>
      <div><dt>oldest reading</dt><dd>${oldest ? html`${readingAge(oldest, cluster)} on ${' '}<${NodeLink} name=${oldest.name} />` : 'none'}</dd></div>
    </dl>
    ${kinds.map(({ title, meaning, list }) => html`<section key=${title} class="finding">
      <h2>${list.length === 0 ? '✓' : '▲'} ${title} <span class="aside">${list.length === 0 ? 'none' : `${count(list.length)} – ${meaning}`}</span></h2>
      ${list.length > 0 && html`<p class="pods">${list.slice(0, MOST).map(({ row, text }) => html`<span><${NodeLink} name=${row.name} />${text && html` <span class="muted">${text}</span>`}</span> `)}${
        list.length > MOST && html`<span class="muted">and ${count(list.length - MOST)} more</span>`}</p>`}
    </section>`)}
  <//>`;
}
