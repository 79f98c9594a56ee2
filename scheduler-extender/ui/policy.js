// The policy in force, its warnings, and what the shadow policy would have decided otherwise.

import { useAnswer } from './state.js';
import { html, Awaited, MetricName, NodeLink, PodLink, Table, View } from './elements.js';
import { clock, count, counted, decimal, memory, share, span } from './format.js';

export function Policy() {
  const { answer: policy, error } = useAnswer('/v1/policy', 10);
  return html`<${View} title="Policy" legend="The policy in force with all defaults filled in, and the shadow policy beside it.">
    ${policy === null ? html`<${Awaited} error=${error} what="the policy" />` : html`<${InForce} policy=${policy} />`}
    <${Shadow} />
  <//>`;
}

function InForce({ policy }) {
  return html`
    ${policy.error && html`<p class="notice over-text">Refused: line ${policy.error.line}, ${policy.error.field}: ${policy.error.problem}</p>`}
    ${policy.warnings.length > 0 && html`<h2>${counted(policy.warnings.length, 'warning')}</h2>
      <ul class="reasons">${policy.warnings.map(warning => html`<li>${warning}</li>`)}</ul>`}
    <h2>Metrics</h2>
    <${Metrics} metrics=${policy.metrics} />
    ${policy.nodePools.map(pool => html`<h2>Pool ${pool.name} <span class="aside">${pool.selector}</span></h2><${Metrics} metrics=${pool.metrics} />`)}
    <h2>Rules</h2>
    <dl class="rules">${rules(policy).map(([term, text]) => html`<div><dt>${term}</dt><dd>${text}</dd></div>`)}</dl>`;
}

function Metrics({ metrics }) {
  return html`<${Table} rows=${metrics} keyOf=${metric => metric.name} columns=${[
    ['Metric', metric => html`<${MetricName} name=${metric.name} />`, 'name'],
    ['Limit', metric => share(metric.limit), 'number'],
    ['Weight', metric => (metric.weight === undefined ? '–' : decimal(metric.weight)), 'number'],
    ['Share of the score', metric => share(metric.scoreShare), 'number'],
    ['Period', metric => seconds(metric.periodSeconds), 'number'],
    ['Counts for', metric => seconds(metric.maxAgeSeconds), 'number'],
    ['When stale', metric => metric.whenStale ?? '–'],
    ['When missing', metric => metric.whenMissing ?? '–'],
    ['Exported', metric => metric.exported?.replace('-', ' ') ?? '–'],
  ]} />`;
}

function seconds(number) {
  return number === undefined ? '–' : span(number);
}

/** The rest of a policy, each part with its value in words. */
export function rules({ kind, scoring, limits, estimates, hotValue, namespaces, gpu }) {
  return [
    ['kind', kind],
    scoring && ['scoring', [`${scoring.model}, ${scoring.direction}, scale ${scoring.scale}`,
      scoring.target !== undefined && `target ${share(scoring.target)}`,
      scoring.margin !== undefined && `margin ${decimal(scoring.margin)}`,
      scoring.sensitivity !== undefined && `sensitivity ${decimal(scoring.sensitivity)}`,
      scoring.pairing !== undefined && `pairing ${decimal(scoring.pairing)}`].filter(Boolean).join(', ')],
    limits && ['limits', [limits.mode === 'hard' ? 'hard: a pod waits if every node is over a limit' : 'soft: if every node is over a limit, the least loaded pass',
      limits.maxWaitSeconds !== undefined && `after ${span(limits.maxWaitSeconds)} it may go to the least loaded`,
      limits.exemptPriorityClasses.length > 0 && `exempt: ${limits.exemptPriorityClasses.join(', ')}`].filter(Boolean).join('; ')],
    ['estimates', estimates
      ? `${estimates.learned ? `learned use, ${estimates.statistic}` : 'not learned'}; else ${decimal(estimates.cpuFactor)} of the CPU request, ${decimal(estimates.memoryFactor)} of the memory request; `
        + `without a request ${decimal(estimates.defaultCpu)} cores, ${memory(estimates.defaultMemory / 1048576)}`
      : 'do not count'],
    hotValue.length > 0 && ['hot value', hotValue.map(rule => `${counted(rule.count, 'binding')} in ${span(rule.timeRangeSeconds)} cost 10 of 100 points`).join('; ')],
    gpu && ['cards', [`placement ${gpu.placement}, unmanaged memory: ${gpu.unmanagedMemory}`,
      ...gpu.beyondUnits.map(rule => `${rule.namespaces.join(', ')} may take beyond units: ${rule.allow.join(', ')}`)].join('; ')],
    ...namespaces.map(rule => ['namespaces', `${rule.names.join(', ')} only on ${rule.nodeSelector}`]),
  ].filter(Boolean);
}

function Shadow() {
  const { answer, error } = useAnswer('/shadow', 10);
  if (error?.status === 404) return html`<h2>Shadow policy</h2><p class="muted">There is none.</p>`;
  if (answer === null) return html`<h2>Shadow policy</h2><${Awaited} error=${error} what="the shadow policy" />`;
  const differing = answer.pods.filter(pod => pod.differs.length > 0);
  const differingIn = what => count(differing.filter(pod => pod.differs.includes(what)).length);
  return html`<h2>Shadow policy <span class="aside">${count(differing.length)} of ${counted(answer.pods.length, 'pod')} of the last hour differ:
      ${' '}${differingIn('filter')} in which nodes may take it, ${differingIn('score')} in which node is best</span></h2>
    ${differing.length > 0 && html`<${Table} rows=${differing.slice(0, 100)} keyOf=${one => one.pod.uid} columns=${[
      ['Time', one => clock(Date.parse(one.time)), 'number'],
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
