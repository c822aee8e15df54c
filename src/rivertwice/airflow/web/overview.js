// All pipelines, one row each, worst first.
import { html, useEffect, useMemo } from "./vendor/preact-htm.js";
import { Banner, Checked } from "./banner.js";
import { bytes, number } from "./format.js";
import { FlowMap } from "./map.js";
import { LIGHTS, Running, WORST } from "./now.js";
import { Ago, Busy, Empty, Light, Note, Sparkline, Stale, Table, Words, pipelineHref } from "./parts.js";
import { useData } from "./poll.js";

const EVERY = 5000;
const SHOWN = { all: "All", ten: "Ten worst", attention: "Needs attention", running: "With something running", quiet: "Nothing to do" };
const VIEWS = { list: "List", map: "Map" };
const SORTS = { worst: "Worst first", name: "Name", lag: "Largest lag", verdict: "Oldest verdict", budget: "Smallest budget left", cost: "Largest cost" };
const TEN = 10;

const budgetOf = (row) => row.objectives?.budgets[0], leftOf = (row) => budgetOf(row)?.left ?? Infinity;
const costOf = (row) => row.objectives?.cost?.cpu_s[1] ?? -1;
const worst = (row) => (row.error ? 0 : row.now ? WORST.indexOf(row.now.tone) : WORST.length);
const byName = (a, b) => a.name.localeCompare(b.name);
const byLeft = (a, b) => (leftOf(a) === leftOf(b) ? 0 : leftOf(a) - leftOf(b));
const ORDER = {
  worst: (a, b) => worst(a) - worst(b) || byLeft(a, b) || byName(a, b),
  name: byName,
  lag: (a, b) => (b.lag?.newest ?? -1) - (a.lag?.newest ?? -1) || byName(a, b),
  verdict: (a, b) => (Date.parse(a.verdict?.at ?? 0) || 0) - (Date.parse(b.verdict?.at ?? 0) || 0) || byName(a, b),
  budget: (a, b) => byLeft(a, b) || byName(a, b),
  cost: (a, b) => costOf(b) - costOf(a) || byName(a, b),
};
const KEEPS = {
  all: () => true,
  attention: (row) => worst(row) <= 1,
  running: (row) => (row.running || []).length > 0,
  quiet: (row) => worst(row) > 1 && !row.unread,
};

export function select(rows, { q = "", show = "all", sort = "worst" }) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (row) => `${row.name} ${row.description ?? ""} ${row.now?.sentence ?? ""} ${row.error ?? ""}`.toLowerCase();
  const found = rows.filter((row) => words.every((word) => text(row).includes(word))).filter(KEEPS[show] || KEEPS.all).sort(ORDER[sort] || ORDER.worst);
  return show === "ten" ? found.slice(0, TEN) : found;
}

const HEADS = ["Pipeline", ...LIGHTS.map(([, title]) => title), "Lag, last 6 h", "Last verdict", "Budget left, cost of 24 h", "Running"];

// The smallest budget: what is left of 30 days, and how much of a day's was used in the last day.
function BudgetLeft({ budget, unread }) {
  if (!budget) return html`<div class="soft">no SLO</div>`;
  if (budget.left === null) return html`<div class="soft" title=${budget.text}>${budget.objective}: not known yet</div>`;
  const tone = unread ? "none" : budget.left <= 0 ? "bad" : budget.burn[1] > 1 ? "warn" : "good", percent = (share) => `${number(Math.round(100 * share))} %`;
  return html`<div><${Light} tone=${tone} word=${budget.left > 0 ? percent(budget.left) : "used up"} title=${budget.text} /><div class="soft">${budget.objective}${budget.burn[1] > 0 ? `, ${percent(budget.burn[1])} of 1 d used` : ""}</div></div>`;
}

// What is wrong, and what to do about a red row; without colour if it is what an earlier server read.
function RowWords({ row }) {
  if (row.error) return html`<div class="t-bad row-words">${row.error}</div>`;
  if (!row.now) return html`<div class="row-words soft">${row.unread ? "Being read for the first time." : row.description}</div>`;
  const words = html`<${Words} text=${row.now.sentence} />`;
  if (row.unread) return html`<div class="row-words soft"><${Ago} at=${row.as_of} before="As read " after=" ago, being read again" />: ${words}</div>`;
  return html`<div class="row-words t-${row.now.tone}">${words}</div>${row.now.tone === "bad" && row.now.next ? html`<div class="row-words soft">Next: <${Words} text=${row.now.next} /></div>` : null}`;
}

function cellsOf(row) {
  const lag = row.lag || {};
  return [
    html`<a class="row-name" href=${pipelineHref(row.name)}>${row.name}</a>
      <${RowWords} row=${row} />`,
    ...LIGHTS.map(([key]) => (row.lights?.[key] ? html`<${Light} ...${row.lights[key]} ...${row.unread ? { tone: "none" } : {}} />` : html`<span class="soft">–</span>`)),
    html`${lag.points?.length ? html`<${Sparkline} points=${lag.points} label=${`lag of ${row.name} over the last 6 hours, now ${lag.text || "not known"}`} />` : null}<span class="lag-now">${lag.text || (lag.newest === undefined || lag.newest === null ? "–" : number(lag.newest))}</span><${Stale} short why=${lag.stale} />`,
    row.verdict ? html`<span><${Ago} at=${row.verdict.at} /><${Stale} short why=${row.verdict.stale} /></span>` : html`<span class="soft">none yet</span>`,
    html`<div><${BudgetLeft} budget=${budgetOf(row)} unread=${row.unread} />${row.objectives?.cost ? html`<div class="lag-now">${number(Math.round(costOf(row)))} CPU-s, ${bytes(row.objectives.cost.memory_bytes)}</div>` : null}</div>`,
    html`<${Running} running=${row.running} empty="–" />`,
  ];
}

export function Overview({ route, go }) {
  const state = useData("api/overview", "", { every: EVERY });
  const { query } = route;
  const rows = state.data ? state.data.pipelines : [];
  const shown = useMemo(() => select(rows, query), [rows, query.q, query.show, query.sort]);
  const wrong = rows.filter(KEEPS.attention).length;
  useEffect(() => { document.title = `${wrong ? `(${wrong}) ` : ""}rivertwice`; }, [wrong]);
  const change = (part) => go({ page: "overview", query: { ...query, ...part } }, { push: false });
  const count = (key) => (key === "ten" ? Math.min(TEN, rows.length) : rows.filter(KEEPS[key]).length);
  return html`<div>
    <${Banner} state=${state} />
    <div class="page-head"><h1>Pipelines</h1><a href=${new URL("api/week", document.baseURI.split("#")[0]).href} download>Report of the week</a><${Checked} state=${state} /></div>
    ${query.dag ? html`<${Note} tone="calm">The DAG ${query.dag} belongs to no pipeline of rivertwice. Below are those that there are.<//>` : null}
    ${state.data === null ? (state.error ? null : html`<${Busy} />`) : html`
      <div class="tools" role="search">
        <label class="field search"><span>Search</span><input type="search" value=${query.q ?? ""} onInput=${(event) => change({ q: event.target.value })} placeholder="Name, or a word of what is wrong" /></label>
        <fieldset class="choices"><legend>Show</legend>${Object.entries(SHOWN).map(([key, text]) => html`<label key=${key}><input type="radio" name="show" value=${key} checked=${(query.show || "all") === key} onChange=${() => change({ show: key === "all" ? "" : key })} /><span>${text} <b>${count(key)}</b></span></label>`)}</fieldset>
        <fieldset class="choices"><legend>As</legend>${Object.entries(VIEWS).map(([key, text]) => html`<label key=${key}><input type="radio" name="view" value=${key} checked=${(query.view || "list") === key} onChange=${() => change({ view: key === "list" ? "" : key })} /><span>${text}</span></label>`)}</fieldset>
        <label class="field sort"><span>Sort by</span><select value=${query.sort || "worst"} onChange=${(event) => change({ sort: event.target.value === "worst" ? "" : event.target.value })}>${Object.entries(SORTS).map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}</select></label>
      </div>
      <p class="unseen" role="status">${shown.length} of ${rows.length} pipelines shown</p>
      ${shown.length && query.view === "map" ? html`<${FlowMap} keeps=${new Set(shown.map((row) => row.name))} />` : shown.length
        ? html`<div class="card flush"><${Table} stack caption="Pipelines" className="overview" rowHead heads=${HEADS} rows=${shown.map((row) => ({ key: row.name, cells: cellsOf(row) }))} /></div>`
        : html`<${Empty}>${rows.length ? "No pipeline fits what you asked for." : "There is no pipeline that you may read. A project's pipelines are in its folder pipelines/; rivertwice init makes one."}<//>`}`}
  </div>`;
}
