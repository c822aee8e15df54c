// One number explained: what `rivertwice explain` prints, as a page that can be linked.
import { html, useState } from "./vendor/preact-htm.js";
import { duration, instant, isMissing, number, plural } from "./format.js";
import { Ago, Copyable, Dialog, Empty, Facts, Loaded, Note, Stale, Table, Tag } from "./parts.js";
import { useData } from "./poll.js";
import { RepairUnderWay } from "./repair.js";

const value = (each) => (isMissing(each) ? "null" : typeof each === "object" ? JSON.stringify(each) : String(each));
const keyText = (key) => Object.values(key).map(value).join(", ") || "all";

const isBackfill = (act) => act.command.startsWith("rivertwice backfill run");

export function Explained({ name, api, acts, act, window, rowKey, stamp, onClose, onPlan }) {
  const asked = new URLSearchParams({ window, ...(rowKey ? { key: rowKey } : {}) });
  const state = useData(api(`explain?${asked}`), stamp);
  const differs = state.data?.explanation.acts.some(isBackfill); // then a repair is proposed soon; one may wait for other cells
  const alerts = useData(api("alerts"), stamp, { every: differs ? 5000 : 0 });
  const repair = alerts.data?.open.map((alert) => alert.repair_under_way).find(Boolean);
  const [truth, setTruth] = useState(false);
  const title = state.data ? `${keyText(state.data.explanation.address.key)}, ${instant(window)}` : `Explain ${instant(window)}`;
  return html`<${Dialog} title=${title} onClose=${onClose} wide><div class="explained"><${Loaded} state=${state}>${(data) => html`<${Body} data=${data} repair=${repair ? html`<${RepairUnderWay} repair=${repair} name=${name} acts=${acts} act=${act} />` : null} truth=${truth} onTruth=${() => setTruth(true)} onPlan=${onPlan} />`}<//></div><//>`;
}

function Body({ data, repair, truth, onTruth, onPlan }) {
  const it = data.explanation, known = data.stored_truth.values;
  const end = instant(it.address.end);
  return html`<div>
    <p class="soft">Window ${instant(it.address.start)} to ${end} (${it.windows}), ${it.is_closed ? (it.closed_by ? html`closed by batch ${it.closed_by} at ${instant(it.closed_at)}` : "final at once") : "open"}</p>
    <${Values} it=${it} known=${truth ? known : null} />
    ${truth ? html`<${TruthNote} data=${data} />` : html`<p><button type="button" onClick=${onTruth}>Show the truth</button></p>`}
    <h3>Next</h3>
    ${repair}
    ${it.acts.length ? html`<ul class="lines">${it.acts.map((act) => html`<li key=${act.command}><${Copyable} text=${act.command} /><div class="soft">${act.why}</div>
      ${isBackfill(act) ? html`<button type="button" class=${repair ? "" : "primary"} onClick=${() => onPlan(rangeOf(act.command, it.address))}>Plan this backfill</button>` : null}</li>`)}</ul>` : html`<p>${it.is_closed ? "Nothing to do." : "Wait: the window is open."}</p>`}
    <h3>Verdict</h3>
    ${it.verdicts.length ? html`<ul class="lines">${it.verdicts.map((each) => html`<li key=${each.pair}>${each.pair} <${Tag} word=${each.verdict} />${each.reason ? ` ${each.reason}` : ""} <span class="soft">(<${Ago} at=${each.at} />, run ${each.run})</span><${Stale} why=${each.stale} /></li>`)}</ul>` : html`<p>No reconcile has judged it.</p>`}
    <h3>How it came to be</h3>
    <${Facts} pairs=${[
      ["Served", it.published ? html`backfill ${it.published.backfill}${it.published.reason ? ` (${it.published.reason})` : ""} serves ${it.has_served ? "it" : "the window, without this row"}: published ${instant(it.published.at)}, sequence ${it.published.sequence}` : it.has_served ? "the stream's row is served" : it.is_closed ? "nothing is served of it" : "nothing is served yet: the window is open"],
      ["Stream", it.emitted ? `emitted by batch ${it.emitted.timeline}/${it.emitted.batch}, epoch ${it.emitted.epoch}, committed ${instant(it.emitted.at)}` : "emitted no such row on the head's path"],
      ["Read", html`<${Reads} reads=${it.reads} />`],
    ]} />
    <h3>Late records (${number(it.late_total)})</h3>
    <${Table} caption="Late records of the row" empty="No record is known to be late." heads=${["Record", "Event time", { text: "Too late by", num: true }, "Watermark", "Read by", "In what is served"]}
      rows=${it.late.map((each) => ({ key: each.place, cells: [html`<code>${each.place}</code>`, instant(each.event_time), duration(each.late_s), instant(each.watermark), each.batch ? `batch ${each.batch}, ${instant(each.read_at)}` : "not on the head's path", each.is_served ? "yes" : "no"] }))} rowHead />
    ${it.late_total > it.late.length ? html`<p class="soft">and ${number(it.late_total - it.late.length)} more</p>` : null}
    <h3>Refused records (${number(it.dead_total)})</h3>
    <${Table} caption="Refused records among what the batches read" empty="No record among these offsets." heads=${["Record", "Reason", "Batch", "State", "Of this row"]}
      rows=${it.dead.map((each) => ({ key: each.place, cells: [html`<code>${each.place}</code>`, `${each.reason}${each.detail ? `: ${each.detail}` : ""}`, each.batch, each.state, isMissing(each.is_of_row) ? "not known" : each.is_of_row ? "yes" : "no"] }))} rowHead />
    <h3>History</h3>
    <ol class="lines history">${it.history.map((each, place) => html`<li key=${place}>${instant(each.at)} <b>${each.state}</b> ${each.by}${each.why ? ` (${each.why})` : ""}: ${each.values ? Object.entries(each.values).map(([name, item]) => `${name} ${value(item)}`).join(", ") : "no row"}${each.changed.length ? html`; <b>changed: ${each.changed.join(", ")}</b>` : ""}</li>`)}</ol>
    ${it.unknown.length ? html`<h3>Not known</h3><ul class="lines">${it.unknown.map((each) => html`<li key=${each}>${each}</li>`)}</ul>` : null}
  </div>`;
}

function Values({ it, known }) {
  const there = (source, has) => (column) => (has ? value(column[source]) : "no row");
  const heads = ["Column", { text: "Served", num: true }, { text: "Stream", num: true }, ...(known ? [{ text: "Truth", num: true }] : []), "Differs"];
  const served = there("served", it.has_served), stream = there("stream", it.has_stream);
  return html`<${Table} caption="The row, column by column" heads=${heads} rowHead rows=${it.columns.map((column) => ({
    key: column.name,
    tone: column.differs ? "warn" : null,
    cells: [column.name, served(column), stream(column), ...(known ? [value(known[column.name])] : []), column.differs ? html`<b>differs</b>` : ""],
  }))} />`;
}

function TruthNote({ data }) {
  const stored = data.stored_truth;
  if (stored.values) return html`<${Note} tone="good">The truth is that of the verdict: ${stored.why} (<${Ago} at=${stored.at} />), within the tolerance of the definition.<//>`;
  return html`<${Note} tone="calm">The truth is not stored: ${stored.why}. This computes it from the log, by Spark, and changes nothing: <${Copyable} text=${data.command} /> A backfill of the window computes it too, and publishes it.<//>`;
}

function Reads({ reads }) {
  if (!reads.ranges.length) return "no batch accepted a record around the window";
  const span = reads.first === null ? "" : reads.first === reads.last ? `, ${reads.first}` : `, ${reads.first} to ${reads.last}`;
  return html`${number(reads.records)} offsets in ${plural(reads.batches, "batch", "batches")}${span}, which may hold its records<ul class="mono">${reads.ranges.slice(0, 12).map((each) => html`<li>${each.topic}/${each.partition} [${each.start}, ${each.end})</li>`)}</ul>${reads.ranges.length > 12 ? html`<span class="soft">and ${reads.ranges.length - 12} more ranges</span>` : null}`;
}

function rangeOf(command, address) {
  const from = /--from (\S+)/.exec(command), to = /--to (\S+)/.exec(command);
  return from && to ? { from: from[1], to: to[1] } : { from: address.start, to: address.end };
}

// The rows of one cell where a cell is not a single row: the worst first, each leads to its explanation.
export function CellRows({ api, cell, stamp, onClose, onExplain }) {
  const state = useData(api(`cell?${new URLSearchParams(cell)}`), stamp);
  return html`<${Dialog} title=${`Rows of ${instant(cell.from)} to ${instant(cell.to)}`} onClose=${onClose} wide><${Loaded} state=${state}>${(data) => (data.rows.length ? html`
    <${Table} caption="Rows of the cell, the worst first" heads=${["Window", "Key", "Verdict", "Reason", { text: "Explain", hidden: true }]} rowHead
      rows=${data.rows.map((row) => ({ key: row.start + row.key, cells: [html`${instant(row.start)}`, row.label, row.verdict ? html`<${Tag} word=${row.verdict} />` : "–", row.reason, html`<button type="button" class="quiet" onClick=${() => onExplain(row.start, row.key)}>Explain</button>`] }))} />
    ${data.more ? html`<p class="soft">There are more rows than these.</p>` : null}` : html`<${Empty}>No row.<//>`)}<//><//>`;
}
