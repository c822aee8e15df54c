// To whom the results go, and what people expect of them: sinks, the fast path, expectations with their history.
import { html } from "../vendor/preact-htm.js";
import { number, plural } from "../format.js";
import { Ago, Card, Copyable, Empty, Instant, Light, Loaded, Note, Table, Tag, Words } from "../parts.js";
import { useData } from "../poll.js";

const placeOf = (view) => (view.timeline === null ? "–" : `${view.timeline}@${view.batch}, sequence ${view.sequence}`);
const MARKS = { good: "✓", bad: "✕", warn: "!", calm: "a", none: "–" };

function Sinks({ sinks }) {
  return html`<${Table} stack caption="Sinks" rowHead heads=${["Sink", "State", "Promise", "Position", { text: "Rows", num: true }, "Waits", "Last delivery"]}
    empty="It has no sinks: its results are read from the tables. A sink is written under deliver in pipeline.yaml."
    rows=${sinks.map(({ view, tone, word }) => ({ key: view.sink, cells: [
      html`<span>${view.sink} <span class="soft">${view.to}</span></span>`, html`<${Light} tone=${tone} word=${word} />`, view.guarantee.replaceAll("_", " "), html`<code>${placeOf(view)}</code>`, number(view.rows),
      view.lag_batches === null ? "not known" : view.lag_batches ? html`<span>${plural(view.lag_batches, "batch", "batches")}${view.waits_since ? html`, for <${Ago} at=${view.waits_since} after="" />` : null}</span>` : "nothing",
      view.delivered_at ? html`<${Ago} at=${view.delivered_at} />` : "never"] }))} />
    ${sinks.filter(({ view }) => view.error).map(({ view }) => html`<${Note} key=${view.sink} tone="bad"><b>${view.sink}</b>: ${view.error}${view.next_attempt ? html` The next attempt is at <${Instant} at=${view.next_attempt} />.` : null}<//>`)}
    ${sinks.filter((sink) => sink.refused.length).map(({ view, refused }) => html`<div key=${view.sink}><h3>Refused by ${view.sink}</h3><${Table} stack caption=${`Deliveries that ${view.sink} refused`} heads=${["Key", "Reason", { text: "Times", num: true }, "Last"]}
      rows=${refused.map((each) => ({ key: each.key, cells: [html`<code>${each.key}</code>`, each.reason, number(each.times), html`<${Instant} at=${each.last_at} />`] }))} /></div>`)}
    ${sinks.filter((sink) => sink.next).map(({ view, next }) => html`<p key=${view.sink} class="next-command"><b>Next:</b> <${Copyable} text=${next} /></p>`)}`;
}

function Fast({ fast }) {
  return html`<${Card} title="Fast path" note=${`each record's own row, at least once, to the topic ${fast.topic}`}>
    <p><${Light} tone=${fast.runs ? "good" : "none"} word=${fast.runs ? "runs" : "does not run"} />${fast.run === null ? html` <span class="soft">and never ran</span>` : html` <span class="soft">run ${fast.run} began <${Ago} at=${fast.at} />, with bundle <code>${fast.bundle.slice(0, 12)}</code></span>`}</p><//>`;
}

// One cell for each run of its suite, oldest first.
const History = ({ row }) => html`<ol class="runs" aria-label=${`${row.because}: ${plural(row.history.length, "run")}, oldest first`}>${row.history.map((each) => html`<li key=${each.run} class="c-${each.tone}" title=${`${each.run}: ${each.state}${each.window_start ? `, windows from ${each.window_start} to ${each.window_end}` : ""}${each.reason ? `: ${each.reason}` : ""}`}><span aria-hidden="true">${MARKS[each.tone]}</span><span class="unseen">${each.state}</span></li>`)}</ol>`;

function Expectations({ rows }) {
  const accepted = (row) => row.history.filter((each) => each.reason).at(-1);
  return html`<${Table} stack caption="Expectations" rowHead heads=${["Expectation", "State", "Severity", { text: "Runs, oldest first", wide: true }]}
    empty="It has no suite, or none has run: expectations/NAME/windows.json is judged by each reconcile."
    rows=${rows.map((row) => ({ key: `${row.subject}${row.id}`, cells: [
      html`<span>${row.because} <span class="soft">${row.subject}</span>${row.text ? html`<span class="soft block"><${Words} text=${row.text} /></span>` : null}
        ${accepted(row) ? html`<span class="soft block">accepted <${Instant} at=${accepted(row).at} seconds=${false} />: ${accepted(row).reason}</span>` : null}${row.next ? html`<span class="block"><b>Next:</b> <${Copyable} text=${row.next} /></span>` : null}</span>`,
      html`<${Light} tone=${row.tone} word=${row.state} />`, html`<${Tag} word=${row.severity} />`, html`<${History} row=${row} />`] }))} />`;
}

export default function Tab({ api, stamp }) {
  const state = useData(api("results"), stamp, { every: 10_000 });
  return html`<${Loaded} state=${state}>${(data) => html`<div class="column">
    <${Card} title="Sinks" note="what gets the results, and how far each is"><${Sinks} sinks=${data.sinks} /><//>
    ${data.fast ? html`<${Fast} fast=${data.fast} />` : null}
    <${Card} title="Expectations" note="what people expect of the rows, as the newest run judged it"><${Expectations} rows=${data.expectations} /><//>
  </div>`}<//>`;
}
