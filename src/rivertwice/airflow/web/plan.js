// A backfill before it runs: the plan, what it changes, a reason, and the pipeline's name typed.
import { html, useState } from "./vendor/preact-htm.js";
import { useActs } from "./acts.js";
import { duration, instant, number, plural } from "./format.js";
import { AirflowLink, Busy, Confirm, Copyable, Dialog, Facts, Note, Table, Tag } from "./parts.js";
import { newId, useData } from "./poll.js";
import { Counts } from "./verdicts.js";

// `range`: { from, to }, or {} for the windows that are stale.
export function PlanDialog({ name, range, api, act, onClose }) {
  const asked = range.from ? `?${new URLSearchParams({ from: range.from, to: range.to })}` : "";
  const state = useData(api(`plan${asked}`));
  const [id] = useState(newId), [started, setStarted] = useState(null);
  const acts = useActs(api), may = acts.find("backfill");
  const fields = range.from ? { scope: "range", start: range.from, end: range.to } : { scope: "stale" };
  const start = (more) => async ({ confirm, reason }) => setStarted(await act("backfill", { id, reason, confirm, fields: { ...fields, ...more } }));
  const title = range.from ? `Backfill ${instant(range.from)} to ${instant(range.to)}` : "Backfill the stale windows";
  if (started) {
    return html`<${Dialog} title=${title} onClose=${onClose}><div role="status"><${Note} tone="good">${started.repeated ? "Was started already" : "Started"} as <${AirflowLink} dag=${started.dag} run=${started.run}>${started.run}<//> by ${started.by}. The list of backfills shows how far it is.${started.paused ? html` <b>${started.dag} is paused in Airflow, so the run waits until somebody unpauses it.</b>` : ""}<//></div>
      <div class="buttons"><button type="button" class="primary" onClick=${onClose}>Close</button></div><//>`;
  }
  if (state.data === null) return html`<${Dialog} title=${title} onClose=${onClose}>${state.error ? html`<${Note} tone="bad">${state.error}<//>` : html`<${Busy}>Planning: the tables and Kafka's offsets are read…<//>`}<//>`;
  const it = state.data;
  if (acts.known && !may && it.state !== "refused") return html`<${Dialog} title=${title} onClose=${onClose}>${it.plan ? html`<${Plan} it=${it} />` : html`<${Note} tone="calm">${it.why}.<//><${Changes} changes=${it.changes} />`}<${Note} tone="none">You may look, and not start it: that needs the right to trigger <code>backfill__${name}</code> in Airflow.<//><//>`;
  if (it.state === "planned") return html`<${Confirm} title=${title} name=${name} verb="Run the backfill" onConfirm=${start({})} onClose=${onClose}><${Plan} it=${it} /><//>`;
  if (it.state === "refused") return html`<${Dialog} title=${title} onClose=${onClose}><${Note} tone="warn">There is no plan: ${it.why}<//><//>`;
  return html`<${Confirm} title=${title} name=${name} verb="Start the dry run" onConfirm=${start({ dry_run: true })} onClose=${onClose}>
    <${Note} tone="calm">${it.why}.<//><${Changes} changes=${it.changes} /><p>The dry run writes the plan into its log, and publishes nothing. <${Copyable} text=${it.command} /></p><//>`;
}

export function Plan({ it }) {
  const plan = it.plan, earlier = it.earlier;
  return html`<div><${Facts} pairs=${[
    ["Windows", `${number(plan.windows)} ${plan.pieces === 1 ? "in one piece" : `in ${plan.pieces} pieces`}`],
    ["Reads", `${number(plan.records)} records of the log`],
    ["Work", `${plural(plan.chunks, "chunk")}, about ${number(plan.largest)} rows in the largest`],
    ["Takes", earlier ? `the last one, ${earlier.id}, took ${duration(earlier.seconds)} for ${number(earlier.records)} records` : "not known: no backfill was published yet"],
    ["Replaces", plan.replaces.length ? `what ${plan.replaces.join(", ")} published` : "no publication"],
    ...plan.cut.map((part) => ["Left out", `${instant(part.from)} to ${instant(part.to)}: ${part.why}`]),
  ]} /><${Changes} changes=${it.changes} />
    <details><summary>The plan as the command prints it</summary><pre class="plan-text" tabindex="0" aria-label="The plan">${plan.text}</pre><${Copyable} text=${it.command} /></details></div>`;
}

function Changes({ changes }) {
  if (!changes) return html`<p class="soft">No reconcile has judged these windows, so it is not known what changes.</p>`;
  return html`<div><h3>What changes</h3><p>By the newest reconcile (${instant(changes.at)}), their served rows: <${Counts} counts=${changes.counts} /></p>
    ${changes.total ? html`<${Table} caption="Served rows that do not agree" heads=${["Window", "Key", "Verdict", "Reason"]} rowHead
      rows=${changes.rows.map((row) => ({ key: row.start + row.label, cells: [instant(row.start, { seconds: false }), row.label, html`<${Tag} word=${row.verdict} />`, row.reason] }))} />` : html`<p>All of them agree with the truth already: nothing changes.</p>`}
    ${changes.total > changes.rows.length ? html`<p class="soft">and ${number(changes.total - changes.rows.length)} more</p>` : null}</div>`;
}
