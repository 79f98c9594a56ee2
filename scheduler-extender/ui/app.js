// The page: which view the address names, the state of the connection, the theme.

import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { useCluster } from './state.js';
import { clock, html, parseAddress, View } from './elements.js';
import { NodePage, Nodes } from './nodes.js';
import { Cards } from './cards.js';
import { Decisions, Pending, PodPage } from './pods.js';
import { Health, Policy } from './policy.js';

const VIEWS = ['nodes', 'cards', 'pending', 'decisions', 'policy', 'health'];
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
      <nav aria-label="Views">${VIEWS.map(name => html`<a key=${name} href=${`#/${name}`}
        aria-current=${current(view) === name ? 'page' : null}>${name[0].toUpperCase() + name.slice(1)}</a>`)}</nav>
      <${Connection} at=${at} error=${error} cluster=${cluster} />
      <button type="button" class="theme" onClick=${() => theme.choose(THEMES[(THEMES.indexOf(theme.chosen) + 1) % THEMES.length])}
        aria-label=${`Theme: ${theme.chosen}. Change it`}>◐ ${theme.chosen}</button>
    </header>
    ${error && html`<div class="banner" role="alert">▲ ${at ? `Disconnected: no answer since ${clock(at)}, what is shown is from then.` : 'No answer from the extender.'}
      ${' '}<span class="cause">${error.message}</span>${' '}Next try at ${clock(retry)}. <button type="button" onClick=${now}>Try now</button></div>`}
    ${cluster && !cluster.replica.complete && html`<div class="banner" role="status">Not all nodes and pods were listed yet: cards may look emptier than they are.</div>`}
    ${cluster && !cluster.replica.leads && view === 'cards' && html`<div class="banner" role="status">This replica does not lead: cards set aside for pods that are being bound are not shown.</div>`}
    <main id="main">${shownView(view, parts, settings, cluster, at, theme.shown)}</main>`;
}

/** The tab that a view belongs to. */
function current(view) {
  return { node: 'nodes', pod: 'decisions' }[view] ?? view;
}

function skip(event) {
  event.preventDefault();
  document.querySelector('h1')?.focus();
}

function shownView(view, parts, settings, cluster, at, theme) {
  switch (view) {
    case 'node': return html`<${NodePage} key=${parts[1]} name=${parts[1] ?? ''} cluster=${cluster} />`;
    case 'pod': return html`<${PodPage} key=${parts.join('/')} namespace=${parts[1] ?? ''} name=${parts[2] ?? ''} cluster=${cluster} />`;
    case 'pending': return html`<${Pending} key="pending" />`;
    case 'decisions': return html`<${Decisions} key="decisions" settings=${settings} />`;
    case 'policy': return html`<${Policy} key="policy" />`;
    default:
  }
  if (!VIEWS.includes(view)) return html`<${View} title="No such view" legend="The address names none of the views above." />`;
  if (cluster === null) return html`<p class="muted" role="status">Asking the extender …</p>`;
  switch (view) {
    case 'cards': return html`<${Cards} key="cards" cluster=${cluster} settings=${settings} theme=${theme} />`;
    case 'health': return html`<${Health} key="health" cluster=${cluster} at=${at} />`;
    default: return html`<${Nodes} key="nodes" cluster=${cluster} settings=${settings} theme=${theme} />`;
  }
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
