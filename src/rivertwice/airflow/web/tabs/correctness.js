// Correctness: windows and keys with their verdicts, one number explained, and from a selection to its backfill.
import { html, useState } from "../vendor/preact-htm.js";
import { ActButton } from "../acts.js";
import { CellRows, Explained } from "../explained.js";
import { duration, instant, number, plural } from "../format.js";
import { Heatmap, Legend, columnStart } from "../heatmap.js";
import { Card, Copyable, Empty, Loaded, Note, Stale } from "../parts.js";
import { PlanDialog } from "../plan.js";
import { useData } from "../poll.js";
import { Differing, Newest, Trend, staleOf } from "../verdicts.js";

const iso = (ms) => new Date(ms).toISOString().replace(".000Z", "Z");
const PAGE = 50;

export default function Tab({ name, stamp, query, setQuery, api, act, acts }) {
  const [plan, setPlan] = useState(null);
  const state = useData(api("correctness"), stamp);
  const set = (part, push = false) => setQuery({ ...query, ...part }, { push });
  const explain = (window, key) => set({ window, key, cell: null }, true);
  const pair = query.pair || "served";
  return html`<div class="column">
    <${Windows} name=${name} stamp=${stamp} query=${query} set=${set} api=${api} onPlan=${setPlan} onExplain=${explain} />
    <${Loaded} state=${state}>${(data) => (data.run === null ? html`<${Card} title="Newest reconcile" wide><${Empty}>No reconcile has run yet. <${Copyable} text=${`rivertwice reconcile ${name}`} /><//><//>` : html`
      <${Differing} data=${data} onExplain=${explain} /><div class="grid"><${Newest} data=${data} actions=${html`<${ActButton} spec=${acts.find("reconcile")} name=${name} act=${act} label="Reconcile now" />`} /><${Trend} data=${data} pair=${pair} /></div>`)}<//>
    <${Lateness} api=${api} stamp=${stamp} query=${query} />
    ${query.window && !plan ? html`<${Explained} name=${name} api=${api} acts=${acts} act=${act} window=${query.window} rowKey=${query.key} stamp=${stamp} onClose=${() => set({ window: null, key: null })} onPlan=${setPlan} />` : null}
    ${query.cell && !query.window && !plan ? html`<${CellRows} api=${api} cell=${cellOf(query)} stamp=${stamp} onClose=${() => set({ cell: null })} onExplain=${explain} />` : null}
    ${plan ? html`<${PlanDialog} name=${name} range=${plan} api=${api} act=${act} onClose=${() => setPlan(null)} />` : null}
  </div>`;
}

function cellOf(query) {
  const [from, to, key] = query.cell.split("|");
  return { from, to, key, pair: query.pair || "served" };
}

function Windows({ name, stamp, query, set, api, onPlan, onExplain }) {
  const asked = new URLSearchParams();
  for (const part of ["pair", "level", "from", "to", "text", "skip"]) if (query[part]) asked.set(part, query[part]);
  asked.set("limit", PAGE);
  const state = useData(api(`heatmap?${asked}`), stamp);
  const [selection, setSelection] = useState(null);
  const pair = query.pair || "served", skip = Number(query.skip || 0);
  const drill = (map, column) => {
    setSelection(null);
    set({ from: iso(columnStart(map, column)), to: iso(columnStart(map, column + 1)), level: null }, true);
  };
  const open = (map) => (row, column) => {
    const key = row < 0 ? null : map.keys[row];
    if (map.is_window && row >= 0) {
      if (map.letters[row][column] === " ") return;
      if (map.cells[row][column]?.rows && Object.values(map.cells[row][column].rows).reduce((sum, count) => sum + count, 0) > 1) set({ cell: `${iso(columnStart(map, column))}|${iso(columnStart(map, column + 1))}|${key.key}` }, true);
      else onExplain(iso(columnStart(map, column)), key.key === "{}" ? null : key.key);
    } else if (map.level !== map.levels[0]) drill(map, column);
    else if (row >= 0) set({ cell: `${iso(columnStart(map, column))}|${iso(columnStart(map, column + 1))}|${key.key}` }, true);
  };
  return html`<${Card} title="Windows and keys" note=${`${pair} against truth, by the newest reconcile`} wide>
    <div class="tools">
      <fieldset class="choices"><legend>What is compared with the truth</legend>${["served", "stream"].map((each) => html`<label key=${each}><input type="radio" name="pair" checked=${pair === each} onChange=${() => set({ pair: each === "served" ? null : each })} /><span>${each}</span></label>`)}</fieldset>
      ${state.data?.levels ? html`<fieldset class="choices"><legend>A column is</legend>${state.data.levels.map((each) => html`<label key=${each}><input type="radio" name="level" checked=${state.data.level === each} onChange=${() => { setSelection(null); set({ level: each }); }} /><span>${each === "month" ? "30 days" : each}</span></label>`)}</fieldset>` : null}
      <label class="field search"><span>Keys that contain</span><input type="search" value=${query.text || ""} onInput=${(event) => set({ text: event.target.value, skip: null })} placeholder="a part of a key" /></label>
    </div>
    <${Loaded} state=${state}>${(map) => (map.run === null || !map.count ? html`<${Empty}>${map.run === null ? "No reconcile has run yet, so no row is judged." : "No window in this range."}<//>` : html`<div>
      <${Range} map=${map} set=${set} onSet=${() => setSelection(null)} />
      <${Heatmap} map=${map} label=${`Verdicts of ${name}, ${pair} against truth: ${map.keys.length} keys, ${map.count} columns`} selection=${selection} onSelect=${setSelection} onOpen=${open(map)} />
      ${map.keys.length ? null : html`<p class="soft">No key contains this text.</p>`}
      ${map.note ? html`<${Note} tone="calm">${map.note}<//>` : null}
      <${Pages} map=${map} skip=${skip} set=${set} />
      <${Legend} />
      <div role="status">${selection ? html`<div class="chosen-windows"><b>${plural(selection[1] - selection[0] + 1, map.is_window ? "window" : "column")}</b> ${instant(columnStart(map, selection[0]), { seconds: false })} to ${instant(columnStart(map, selection[1] + 1), { seconds: false })}
        <button type="button" class="primary" onClick=${() => onPlan({ from: iso(columnStart(map, selection[0])), to: iso(columnStart(map, selection[1] + 1)) })}>Plan a backfill of them</button>
        ${map.level === map.levels[0] ? null : html`<button type="button" onClick=${() => { set({ from: iso(columnStart(map, selection[0])), to: iso(columnStart(map, selection[1] + 1)), level: null }, true); setSelection(null); }}>Show them alone</button>`}
        <button type="button" class="quiet" onClick=${() => setSelection(null)}>Clear</button></div>` : html`<p class="soft">Enter or a click ${map.is_window ? "explains a number" : "shows the windows of a column"}. Drag, or Shift with the arrows, selects windows for a backfill.</p>`}</div>
    </div>`)}<//><//>`;
}

function Range({ map, set, onSet }) {
  const width = map.count * map.step_ms, end = map.start_ms + width;
  const to = (start, stop) => { onSet(); set({ from: iso(start), to: iso(stop), level: map.level }, true); };
  const age = { ...map.run, published: 0 };
  return html`<div class="tools"><div><b>${instant(map.start_ms, { seconds: false })}</b> to <b>${instant(end, { seconds: false })}</b>, ${map.windows}<${Stale} why=${staleOf(age)} /></div>
    <div class="buttons-row">
      <button type="button" disabled=${map.start_ms <= map.extent[0]} onClick=${() => to(map.start_ms - width, map.start_ms)}>Older</button>
      <button type="button" disabled=${end >= map.extent[1]} onClick=${() => to(end, end + width)}>Newer</button>
      <button type="button" class="quiet" onClick=${() => { onSet(); set({ from: null, to: null, level: null }); }}>Newest</button></div></div>`;
}

function Pages({ map, skip, set }) {
  if (map.is_last && !skip) return null;
  return html`<p class="tools"><span class="soft">Keys ${skip + 1} to ${skip + map.keys.length}, the worst first</span>
    <button type="button" disabled=${!skip} onClick=${() => set({ skip: Math.max(0, skip - PAGE) || null })}>Worse keys</button>
    <button type="button" disabled=${map.is_last} onClick=${() => set({ skip: skip + PAGE })}>More keys</button></p>`;
}

const span = (bar) => (bar.to_s === null ? `${duration(bar.from_s)} or more` : bar.from_s === 0 ? `under ${duration(bar.to_s)}` : `${duration(bar.from_s)} to ${duration(bar.to_s)}`);

function Lateness({ api, stamp, query }) {
  const asked = query.from && query.to ? `?${new URLSearchParams({ from: query.from, to: query.to })}` : "";
  const state = useData(api(`lateness${asked}`), stamp);
  return html`<${Card} title="How late the late records were" wide><${Loaded} state=${state}>${(data) => {
    if (data.watermark_s === null) return html`<${Empty}>Its sources have no watermark, so no record is late.<//>`;
    if (!data.total) return html`<${Empty}>No late record is known in this range.<//>`;
    const most = Math.max(...data.bars.map((bar) => bar.count));
    return html`<div><p class="soft">${plural(data.total, "record")} of windows from ${instant(data.from, { seconds: false })} to ${instant(data.to, { seconds: false })}${data.source === "causes" ? ", as the newest reconcile named them" : ", as the stream kept them"}: from the end of its window to the watermark that judged it.</p>
      <ul class="lateness"><li class="mark">the watermark of the definition: ${duration(data.watermark_s)} behind the newest record</li>${data.bars.map((bar) => html`<li key=${bar.from_s}><span>${span(bar)}</span><span>${bar.count ? html`<span class="late-bar" style=${{ width: `${(100 * bar.count) / most}%` }}></span>` : null}</span>
        <span>${number(bar.count)} <span class="soft">${bar.to_s === null ? "" : `with ${duration(bar.to_s)} more, ${number(bar.until)} of ${number(data.total)} in time`}</span></span></li>`)}</ul></div>`;
  }}<//><//>`;
}
