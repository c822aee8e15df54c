// Rows of the tables: the newest ones, by window and key, as a file; each served number leads to its explanation.
import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { isMissing, number, plural } from "../format.js";
import { Card, Loaded, Table, pipelineHref } from "../parts.js";
import { useData } from "../poll.js";

const LIMITS = [20, 50, 200];
const shown = (value) => (isMissing(value) ? html`<span class="soft">null</span>` : typeof value === "object" ? JSON.stringify(value) : String(value));
const isNumber = (value) => typeof value === "number";

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
  return html`<div class="column"><${Card} title="Rows" note=${tables[query.table || "served"] ?? ""}>
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
      <p class="soft">${data.rows.length} of ${data.total === null ? "an unknown number of" : number(data.total)} rows. ${data.status}. ${data.places.length ? "Each row leads to how its numbers came about." : ""}
        ${data.rows.length ? html` As a file: ${["csv", "parquet", "jsonl"].map((form) => html`<a key=${form} href=${api(`rows.${form}?${asked}`)} download>${form}</a> `)}` : null}</p>
      <${Table} caption=${`${plural(data.rows.length, "row")} of ${data.table}`} empty="No row fits."
        heads=${[...(data.places.length ? [{ text: "Explained", hidden: true }] : []), ...data.columns.map((column, place) => ({ text: column, num: data.rows.some((row) => isNumber(row[place])) }))]}
        rows=${data.rows.map((row, at) => ({ key: at, cells: [...(data.places.length ? [html`<a href=${pipelineHref(name, "correctness", { window: data.places[at][0], key: data.places[at][1] })}>explain<span class="unseen"> row ${at + 1}</span></a>`] : []), ...row.map(shown)] }))} />
    </div>`}<//><//></div>`;
}
