// Rows of the tables: the newest ones, by window and key, by SQL, as a file; each served number leads to its explanation.
import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { isMissing, number, plural } from "../format.js";
import { Busy, Card, Loaded, Note, Table, Words, pipelineHref } from "../parts.js";
import { post, useData } from "../poll.js";

const LIMITS = [20, 50, 200];
const shown = (value) => (isMissing(value) ? html`<span class="soft">null</span>` : typeof value === "object" ? JSON.stringify(value) : String(value));
const isNumber = (value) => typeof value === "number" || (typeof value === "string" && /^-?\d+\.\d+$/.test(value)); // a decimal is text
const FORMS = ["csv", "parquet", "jsonl"];
const written = new Map(); // pipeline -> the statement, while the page is open; it may hold a person's data, so no address has it

// A day or an instant as the server takes it; an empty field is none.
const instantOf = (text) => (text && text.length <= 10 ? `${text}T00:00:00Z` : text.endsWith("Z") || !text ? text : `${text}Z`);

function askedOf(query) {
  const asked = { table: query.table || "served", limit: query.limit || 50, order: query.order || "newest" };
  if (query.key) asked.key = query.key;
  if (query.from) asked.from = instantOf(query.from);
  if (query.to) asked.to = instantOf(query.to);
  return new URLSearchParams(asked);
}

export default function Tab({ name, api, query, setQuery, stamp }) {
  const asked = askedOf(query), state = useData(api(`rows?${asked}`), stamp, { every: stamp ? 0 : 15_000 });
  const [key, setKey] = useState(query.key || "");
  useEffect(() => setKey(query.key || ""), [query.key]);
  const set = (part) => setQuery({ ...query, ...part });
  const tables = state.data?.tables ?? { served: "what a closed window serves" };
  return html`<div class="column"><${Sql} name=${name} api=${api} /><${Card} title="Rows" note=${tables[query.table || "served"] ?? ""}>
    <form class="tools" onSubmit=${(event) => { event.preventDefault(); set({ key }); }}>
      <label class="field"><span>Table</span><select value=${query.table || "served"} onChange=${(event) => set({ table: event.target.value, key: null })}>${Object.keys(tables).map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label class="field"><span>From (UTC)</span><input type="datetime-local" value=${query.from || ""} onChange=${(event) => set({ from: event.target.value })} /></label>
      <label class="field"><span>Until, exclusive</span><input type="datetime-local" value=${query.to || ""} onChange=${(event) => set({ to: event.target.value })} /></label>
      <label class="field search"><span>Only with these values, a JSON object</span><input value=${key} onInput=${(event) => setKey(event.target.value)} placeholder='{"origin": "JFK"}' spellcheck=${false} autocomplete="off" /></label>
      <label class="field"><span>Order</span><select value=${query.order || "newest"} onChange=${(event) => set({ order: event.target.value })}><option value="newest">newest first</option><option value="oldest">oldest first</option></select></label>
      <label class="field"><span>Rows</span><select value=${String(query.limit || 50)} onChange=${(event) => set({ limit: event.target.value })}>${LIMITS.map((each) => html`<option key=${each} value=${String(each)}>${each}</option>`)}</select></label>
      <button type="submit">Show</button>
    </form>
    <${Loaded} state=${state}>${(data) => html`<div>
      <p class="soft">${data.rows.length} of ${data.total === null ? "an unknown number of" : number(data.total)} rows. <${Words} text=${data.status} />. ${data.places.length ? "Each row leads to how its numbers came about." : ""}${data.withheld ? ` ${data.withheld}.` : ""}
        ${data.rows.length ? html` As a file: ${FORMS.map((form) => html`<a key=${form} href=${api(`rows.${form}?${asked}`)} download>${form}</a> `)}` : null}</p>
      <${Values} name=${name} caption=${`${plural(data.rows.length, "row")} of ${data.table}`} columns=${data.columns.map((column) => ({ name: column }))} data=${data} />
    </div>`}<//><//></div>`;
}

// columns: { name, type } each; data: { rows, places }, a place for each row or none.
function Values({ name, caption, columns, data: { rows, places } }) {
  return html`<${Table} caption=${caption} empty="No row fits."
    heads=${[...(places.length ? [{ text: "Explained", hidden: true }] : []), ...columns.map((column, place) => ({ text: column.name, sub: column.type, num: rows.some((row) => isNumber(row[place])) }))]}
    rows=${rows.map((row, at) => ({ key: at, cells: [...(places.length ? [html`<a href=${pipelineHref(name, "correctness", { window: places[at][0], key: places[at][1] })}>explain<span class="unseen"> row ${at + 1}</span></a>`] : []), ...row.map(shown)] }))} />`;
}

function Sql({ name, api }) {
  const [open, setOpen] = useState(written.has(name));
  const state = useData(open ? api("query") : null);
  return html`<${Card} title="SQL" note="one SELECT over the views that you may read">
    <details open=${open} onToggle=${(event) => setOpen(event.target.open)}><summary>Ask with SQL</summary>
      ${open ? html`<${Loaded} state=${state}>${(data) => (data.why ? html`<${Note} tone="none"><${Words} text=${data.why} /><//>` : html`<${Box} name=${name} path=${api("query")} page=${data} />`)}<//>` : null}
    </details><//>`;
}

function Box({ name, path, page }) {
  const [sql, setSql] = useState(written.get(name) ?? page.sql), [ran, setRan] = useState({ sql: null, data: null, error: null }), [busy, setBusy] = useState(false);
  const running = useRef(null); // what stops the query that runs
  useEffect(() => () => running.current?.abort(), []);
  const write = (text) => { written.set(name, text); setSql(text); };
  async function ask(text, form, take) {
    if (running.current) return;
    const controller = new AbortController();
    running.current = controller;
    setBusy(true);
    try {
      take(await post(path, { sql: text, form }, { signal: controller.signal, blob: form !== "json" }));
    } catch (failure) {
      const error = controller.signal.aborted ? "The query was stopped." : failure.message;
      setRan((before) => (form === "json" ? { sql: text, data: null, error } : { ...before, error }));
    }
    running.current = null;
    setBusy(false);
  }
  const run = () => ask(sql, "json", (data) => setRan({ sql, data, error: null }));
  const save = (form) => ask(ran.sql, form, (blob) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${name}-query.${form}` });
    link.click();
    URL.revokeObjectURL(link.href);
  });
  const keys = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } };
  const { data, error } = ran;
  return html`<div>
    <form onSubmit=${(event) => { event.preventDefault(); run(); }}>
      <label class="field"><span>Statement. Ctrl or ⌘ with Enter runs it.</span><textarea class="mono" rows="7" spellcheck=${false} autocapitalize="off" value=${sql} onInput=${(event) => write(event.target.value)} onKeyDown=${keys}></textarea></label>
      <div class="buttons start"><button type="submit" class="primary" disabled=${busy || !sql.trim()}>Run</button>${busy ? html`<button type="button" onClick=${() => running.current?.abort()}>Stop</button>` : null}</div>
    </form>
    <div aria-live="polite" class="own-line">${busy ? html`<${Busy}>The query runs, at most ${page.seconds} s…<//>` : null}
      ${error ? html`<${Note} tone="bad"><pre class="code" tabindex="0" aria-label="Why it was refused">${error}</pre><//>` : null}
      ${data ? html`<p class="soft">${data.is_whole ? plural(data.rows.length, "row") : `The first ${plural(data.rows.length, "row")}; there are more`}, in ${number(data.seconds)} s. ${data.statuses.map((status) => `${status}. `)}
        ${data.rows.length ? html`As a file, asked again: ${FORMS.map((form) => html`<button key=${form} type="button" class="quiet" disabled=${busy} onClick=${() => save(form)}>${form}</button> `)}` : null}</p>` : null}</div>
    ${data ? html`<${Values} name=${name} caption=${`${plural(data.rows.length, "row")} of the query`} columns=${data.columns.map((column) => ({ ...column, type: column.type.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ") }))} data=${data} />` : null}
    <details><summary>Views and their columns</summary>
      <dl class="rules">${page.views.map((view) => html`<div key=${view.view}><dt><code>${view.view}</code></dt><dd class="soft">${view.what}: ${Object.keys(view.columns).join(", ")}</dd></div>`)}</dl>
      ${page.others.length ? html`<p class="soft own-line">Views of other pipelines can be joined: ${page.others.join(", ")}.</p>` : null}</details>
    <p class="soft own-line">At most ${number(page.rows)} rows, ${page.seconds} s, ${number(page.memory_mib)} MiB of memory. Who asked what is in the log of the API server. The statement is not in the page's address.</p>
  </div>`;
}
