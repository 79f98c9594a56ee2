// The page: which view the address names, the state of the connection, the theme.

import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { useCluster } from './state.js';
import { clock, html, parseAddress, View } from './elements.js';
import { Cards, NodePage, Nodes } from './nodes.js';
import { Decisions, Pending, PodPage } from './pods.js';
import { Health, Policy } from './policy.js';

const TABS = { nodes: Nodes, cards: Cards, pending: Pending, decisions: Decisions, policy: Policy, health: Health };
const VIEWS = { ...TABS, node: NodePage, pod: PodPage };
const TAB_OF = { node: 'nodes', pod: 'decisions' };
const THEMES = ['auto', 'light', 'dark'];
const DARK = matchMedia('(prefers-color-scheme: dark)');

function storedTheme() {
  try {
    const theme = localStorage.getItem('plimsoll-theme');
    return THEMES.includes(theme) ? theme : 'auto';
  } catch {
    return 'auto';
  }
}

function storeTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem('plimsoll-theme', theme);
  } catch {
    // It holds until the page is left.
  }
}

/** The theme that was chosen, and the one that is shown: light or dark. */
function useTheme() {
  const [chosen, setChosen] = useState(storedTheme);
  const [dark, setDark] = useState(DARK.matches);
  useEffect(() => {
    const change = () => setDark(DARK.matches);
    DARK.addEventListener('change', change);
    return () => DARK.removeEventListener('change', change);
  }, []);
  function choose(theme) {
    storeTheme(theme);
    setChosen(theme);
  }
  return { chosen, choose, shown: chosen === 'auto' ? (dark ? 'dark' : 'light') : chosen };
}

function useAddress() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const change = () => setHash(location.hash);
    addEventListener('hashchange', change);
    return () => removeEventListener('hashchange', change);
  }, []);
  return parseAddress(hash);
}

function Page() {
  const { cluster, at, error, retry, now } = useCluster();
  const { parts, settings } = useAddress();
  const theme = useTheme();
  const view = parts[0] || 'nodes';
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header>
      <span class="brand">Plimsoll</span>
      <nav aria-label="Views">${Object.keys(TABS).map(name => html`<a key=${name} href=${`#/${name}`}
        aria-current=${(TAB_OF[view] ?? view) === name ? 'page' : null}>${name === 'cards' ? 'GPUs' : name[0].toUpperCase() + name.slice(1)}</a>`)}</nav>
      <${Connection} at=${at} error=${error} cluster=${cluster} />
      <button type="button" class="theme" onClick=${() => theme.choose(THEMES[(THEMES.indexOf(theme.chosen) + 1) % THEMES.length])}
        aria-label=${`Theme: ${theme.chosen}. Change it`}>◐ ${theme.chosen}</button>
    </header>
    ${error && html`<div class="banner" role="alert">▲ ${at ? `Disconnected: no answer since ${clock(at)}, what is shown is from then.` : 'No answer from the extender.'}
      ${' '}(${error.message}) Next try at ${clock(retry)}. <button type="button" onClick=${now}>Try now</button></div>`}
    ${cluster && !cluster.replica.complete && html`<div class="banner" role="status">Not all nodes and pods were listed yet: GPUs may look emptier than they are.</div>`}
    ${cluster?.cards > 0 && !cluster.replica.leads && ['nodes', 'node', 'cards'].includes(view) && html`<div class="banner" role="status">This replica does not lead: GPUs set aside for pods that are being bound are not shown.</div>`}
    <main id="main"><${Shown} view=${view} parts=${parts} settings=${settings} cluster=${cluster} at=${at} theme=${theme.shown} /></main>`;
}

function skip(event) {
  event.preventDefault();
  document.querySelector('h1')?.focus();
}

function Shown({ view, ...rest }) {
  if (!Object.hasOwn(VIEWS, view)) return html`<${View} title="No such view" legend="The address names none of the views above." />`;
  if (rest.cluster === null) return html`<p class="muted" role="status">Asking the extender …</p>`;
  return html`<${VIEWS[view]} key=${rest.parts.join('/')} ...${rest} />`;
}

function Connection({ at, error, cluster }) {
  if (!at) return html`<span class="connection muted">not connected</span>`;
  const { replica } = cluster;
  return html`<span class="connection" title=${`${replica.name} ${replica.program}${replica.leads ? ', leads' : ', does not lead'}`}>
    ${error ? html`<b class="over-text">▲ disconnected</b>` : html`<span class="live" aria-hidden="true">●</span> live`}
    <span class="muted"> ${clock(at)}</span></span>`;
}

document.documentElement.dataset.theme = storedTheme();
const app = document.getElementById('app');
app.textContent = '';
render(html`<${Page} />`, app);
