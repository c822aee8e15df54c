// Backfills: what waits, what runs and how far it is, what was published and what it changed.
import { html, useCallback, useState } from "../vendor/preact-htm.js";
import { duration, instant, isMissing, number, plural } from "../format.js";
import { AirflowLink, Ago, Card, Copyable, Dialog, Facts, Loaded, Note, Progress, Table, Tag } from "../parts.js";
import { PlanDialog } from "../plan.js";
import { useClock, useData } from "../poll.js";
import { Counts } from "../verdicts.js";

const TONES = { published: "good", replaced: "none", running: "calm", audited: "calm", planned: "none", interrupted: "warn", "audit failed": "bad", obsolete: "none", unreadable: "bad" };
const PAGE = 25;

export default function Tab({ name, stamp, query, setQuery, api, act }) {
  const [plan, setPlan] = useState(null);
  const skip = Number(query.skip || 0);
  const state = useData(api(`backfills${skip ? `?skip=${skip}` : ""}`), stamp, { every: 5000 });
  const set = (part) => setQuery({ ...query, ...part });
  return html`<div><${Loaded} state=${state}>${(data) => html`<div>
    <${StaleWindows} stale=${data.stale} onPlan=${() => setPlan({})} />
    ${data.waiting?.length ? html`<${Card} title="Runs that have no plan yet"><ul class="lines">${data.waiting.map((run) => html`<li key=${run.run}><${AirflowLink} dag=${run.dag} run=${run.run} /> <${Tag} word=${run.state} /> ${run.asked.reason || ""}${run.by ? ` by ${run.by}` : ""}</li>`)}</ul><//>` : null}
    <${Card} title="Backfills" note=${plural(data.total, "stored plan")} wide>
      <${Table} caption="Backfills, newest first" empty="No backfill was planned yet." heads=${["Backfill", "State", "Windows", "Work", { text: "Rows", num: true }, "Published", "Reason, who", { text: "Details", hidden: true }]} rowHead
        rows=${data.backfills.map((row) => ({ key: row.id, cells: cells(row, set) }))} />
      ${data.total > PAGE ? html`<p class="tools"><button type="button" disabled=${!skip} onClick=${() => set({ skip: Math.max(0, skip - PAGE) || null })}>Newer</button><button type="button" disabled=${skip + PAGE >= data.total} onClick=${() => set({ skip: skip + PAGE })}>Older</button></p>` : null}<//>
  </div>`}<//>
  ${query.id ? html`<${Details} api=${api} id=${query.id} stamp=${stamp} onClose=${() => set({ id: null })} />` : null}
  ${plan ? html`<${PlanDialog} name=${name} range=${plan} api=${api} act=${act} onClose=${() => setPlan(null)} />` : null}</div>`;
}

function StaleWindows({ stale, onPlan }) {
  if (!stale.total) return html`<${Note} tone="good">No window is stale: the newest reconcile found none LATE that is not published since.<//>`;
  return html`<${Card} title="Windows that wait" note="found LATE by the newest reconcile, and not published since" actions=${html`<button type="button" class="primary" onClick=${onPlan}>Plan their backfill</button>`}>
    <ul class="lines">${stale.ranges.slice(0, 8).map((range) => html`<li key=${range.from}>${instant(range.from, { seconds: false })} to ${instant(range.to, { seconds: false })}</li>`)}</ul>${stale.total > 8 ? html`<p class="soft">and ${stale.total - 8} more ranges</p>` : null}<//>`;
}

function cells(row, set) {
  if (row.state === "unreadable") return [html`<code>${row.id}</code>`, html`<${Tag} word="unreadable" tone="bad" />`, row.why, "", "", "", "", ""];
  const run = row.runs?.[0];
  return [
    html`<code class="whole">${row.id}</code><div class="soft">planned <${Ago} at=${row.planned_at} /></div>`,
    html`<${Tag} word=${row.state} tone=${TONES[row.state]} />${row.why ? html`<div class="soft">${row.why}</div>` : null}`,
    html`${plural(row.windows, "window")}<div class="soft">${instant(row.from, { seconds: false })} to ${instant(row.to, { seconds: false })}${row.pieces > 1 ? `, in ${row.pieces} pieces` : ""}</div>`,
    html`<${Work} row=${row} />`,
    isMissing(row.rows) ? "–" : number(row.rows),
    row.published_at ? html`${instant(row.published_at)}<div class="soft">sequence ${row.sequence}</div>` : "–",
    html`${row.reason}${run ? html`<div class="soft">${run.by ? `${run.by}, ` : ""}<${AirflowLink} dag=${run.dag} run=${run.run}>run in Airflow<//></div>` : null}`,
    html`<button type="button" class="quiet" onClick=${() => set({ id: row.id })} aria-label=${`Details of ${row.id}`}>Details</button>${row.command ? html`<div><${Copyable} text=${row.command} /></div>` : null}`,
  ];
}

// How far it is, and by the pace of its chunks how long it still takes.
function Work({ row }) {
  const text = useCallback((now) => {
    const times = row.chunk_times.map((each) => Date.parse(each));
    if (row.state !== "running" || times.length < 2 || row.done >= row.chunks) return "";
    const pace = (times[times.length - 1] - times[0]) / (times.length - 1);
    return `, about ${duration(Math.max(0, pace * (row.chunks - row.done) - (now - times[times.length - 1])) / 1000)} left`;
  }, [row]);
  const left = useClock(text);
  const percent = row.chunks ? Math.floor((100 * row.done) / row.chunks) : 0;
  return html`${row.done} of ${plural(row.chunks, "chunk")} (${percent} %)${left}${row.done < row.chunks ? html`<div><${Progress} done=${row.done} total=${row.chunks} label=${`chunks of ${row.id}`} /></div>` : null}<div class="soft">${number(row.records)} records</div>`;
}

function Details({ api, id, stamp, onClose }) {
  const state = useData(api(`backfill?${new URLSearchParams({ id })}`), stamp);
  return html`<${Dialog} title=${id} onClose=${onClose} wide><${Loaded} state=${state}>${(it) => html`<div>
    <${Facts} pairs=${[
      ["Reason", it.reason],
      ["Before", it.before ? html`<${Counts} counts=${it.before.counts} /> <span class="soft">reconcile ${it.before.run}</span>` : "no verdicts are kept of its windows"],
      ["After", it.after ? html`<${Counts} counts=${it.after.counts} /> <span class="soft">reconcile ${it.after.run}</span>` : it.published_at ? "no reconcile has run since it was published" : "not published"],
      ["Changes", it.changed ? `${number(it.changed.changed)} of ${number(it.changed.rows)} rows differ from the stream's, ${number(it.changed.new)} are new, ${number(it.changed.vanished)} vanish` : "not counted"],
      ["Audit", it.audit ? html`<${Tag} word=${it.audit.passed ? "passed" : "failed"} /> ${number(it.audit.rows)} rows${it.audit.accepted ? `; accepted: ${it.audit.accepted}` : ""}` : "none yet"],
    ]} />
    ${it.audit?.checks.length ? html`<${Table} caption="Checks of the audit" heads=${["Check", "Result", "Detail"]} rowHead rows=${it.audit.checks.map((check) => ({ key: check.name, cells: [check.name, html`<${Tag} word=${check.passed ? "passed" : "failed"} />`, check.detail] }))} />` : null}
    <h3>Plan</h3><pre class="plan-text" tabindex="0" aria-label="The plan">${it.plan.text}</pre></div>`}<//><//>`;
}
