// One pipeline: Now on top, then its tabs.
import { html, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact-htm.js";
import { useActs } from "./acts.js";
import { Banner, Checked } from "./banner.js";
import { Lights, Now } from "./now.js";
import { AirflowLink, Busy, Note } from "./parts.js";
import { post, useData } from "./poll.js";
import { Report } from "./report.js";
import { TABS, hashOf } from "./route.js";

const EVERY = 5000;
const modules = new Map(); // key -> what its file exports

function useTab(key) {
  const [state, setState] = useState({ key: null, Tab: null, error: null });
  useEffect(() => {
    let live = true;
    if (!modules.has(key)) modules.set(key, import(`./tabs/${key}.js`));
    modules.get(key).then(
      (found) => live && setState({ key, Tab: found.default, error: null }),
      (error) => { modules.delete(key); if (live) setState({ key, Tab: null, error: String(error.message || error) }); },
    );
    return () => { live = false; };
  }, [key]);
  return state.key === key ? state : { key, Tab: null, error: null };
}

function Guarded({ children }) {
  const [error, reset] = useErrorBoundary((failure) => console.error(failure));
  if (!error) return children;
  return html`<${Note} tone="bad">This part could not be drawn: ${String(error.message || error)}. <button type="button" onClick=${reset}>Try again</button><//>`;
}

function TabList({ route, counts, go }) {
  const list = useRef(null);
  const selected = TABS.findIndex(([key]) => key === route.tab);
  const address = (key) => ({ page: "pipeline", name: route.name, tab: key });
  useEffect(() => {
    const tab = list.current.children[selected], box = list.current;
    const left = tab.offsetLeft; // from the box, which is positioned
    if (left < box.scrollLeft || left + tab.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = left - 40;
  }, [selected]);
  function pressed(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const last = TABS.length - 1;
    let next;
    if (step) next = (selected + step + TABS.length) % TABS.length;
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = last;
    else if (event.key === " ") next = [...list.current.children].indexOf(event.target);
    else return;
    event.preventDefault();
    go(address(TABS[next][0]));
    list.current.children[next].focus();
  }
  return html`<div class="tabs" role="tablist" aria-label="Parts of ${route.name}" ref=${list} onKeyDown=${pressed}>
    ${TABS.map(([key, title]) => html`<a role="tab" key=${key} id="tab-${key}" href=${hashOf(address(key))} aria-selected=${key === route.tab ? "true" : "false"} aria-controls="panel" tabindex=${key === route.tab ? 0 : -1}>${title}${counts[key] ? html` <span class="count">${counts[key]}</span>` : null}</a>`)}
  </div>`;
}

export function Pipeline({ route, go }) {
  const { name, tab, query } = route;
  const base = `api/p/${encodeURIComponent(name)}`;
  const state = useData(`${base}/summary`, "", { every: EVERY });
  const { Tab, error } = useTab(tab);
  const summary = state.data;
  const api = (part) => `${base}/${part}`, act = (verb, body) => post(`${base}/acts/${verb}`, body), acts = useActs(api);
  const mark = { bad: "✖ ", warn: "▲ " }[summary?.now?.tone] ?? "";
  useEffect(() => { document.title = `${mark}${name} · rivertwice`; }, [mark, name]);
  const setQuery = (part, { push = false } = {}) => go({ page: "pipeline", name, tab, query: part }, { push });
  const close = () => { const { report, dag, run, ...rest } = query; setQuery(rest); };
  return html`<div>
    <${Banner} state=${state} />
    ${summary === null ? html`<div class="page-head"><h1>${name}</h1></div>${state.error ? null : html`<${Busy} />`}` : html`
      <div class="page-head"><h1>${name}</h1>${summary.now ? html`<${Lights} lights=${summary.now.lights} />` : null}<${Checked} state=${state} /></div>
      <${Now} name=${name} now=${summary.now} tab=${tab} acts=${acts} act=${act} />
      ${query.report ? html`<${Report} base=${base} run=${query.report} onClose=${close} />` : null}
      ${query.dag && query.run ? html`<${Note} tone="calm">You came from the run <${AirflowLink} dag=${query.dag} run=${query.run} /> of ${query.dag}. <button type="button" class="quiet" onClick=${close}>Close</button><//>` : null}
      <${TabList} route=${route} counts=${summary.counts || {}} go=${go} />
      <div id="panel" role="tabpanel" aria-labelledby="tab-${tab}" tabindex="0" class="panel">
        ${error ? html`<${Note} tone="bad">This part could not be loaded: ${error}. Reload the page.<//>`
          : !Tab ? html`<${Busy} />`
          : html`<${Guarded} key=${tab}><${Tab} name=${name} summary=${summary} stamp=${summary.stamps?.[tab] ?? ""} query=${query} setQuery=${setQuery}
              api=${api} act=${act} acts=${acts} /><//>`}
      </div>`}
  </div>`;
}
