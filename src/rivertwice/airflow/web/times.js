// Where the time goes: bars of a batch's phases and of the time between batches, the slowest batches with their reason, advice.
import { html, useState } from "./vendor/preact-htm.js";
import { bytes, clock, instant, isMissing, number, plural, share } from "./format.js";
import { Card, Empty, Instant, Note, Table, Words } from "./parts.js";

const seconds = (value) => `${number(Math.round(value * 1000) / 1000)} s`;
const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0);

// One step in words: its phases, the largest first.
const wordsOf = (step, names) => Object.entries(step.seconds).sort((a, b) => b[1] - a[1]).map(([name, value]) => `${names[name]} ${share(value / sum(step.seconds))}`).join(", ");

function Bars({ data }) {
  const [spot, setSpot] = useState(null), [asTable, setAsTable] = useState(false);
  const last = data.steps.length - 1, at = Math.min(spot ?? last, last), known = Object.keys(data.names).filter((name) => data.sums[name]);
  const whole = sum(data.sums);
  function pressed(event) {
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (isMissing(next)) return;
    event.preventDefault();
    setSpot(Math.min(Math.max(next, 0), last));
  }
  return html`<div class="times">
    <div class="tools"><p class="readout mono" aria-live="polite">${clock(data.steps[at].at * 1000)}, ${seconds(data.step_s)}: ${wordsOf(data.steps[at], data.names)}</p>
      <button type="button" class="quiet" aria-pressed=${asTable} onClick=${() => setAsTable(!asTable)}>${asTable ? "As bars" : "As a table"}<span class="unseen"> Where the time goes</span></button></div>
    ${asTable ? html`<div class="tall"><${Table} caption="Seconds of each step by phase, newest first" rowHead heads=${["From", ...known.map((name) => ({ text: data.names[name], num: true }))]}
      rows=${[...data.steps].reverse().map((step) => ({ key: step.at, cells: [clock(step.at * 1000), ...known.map((name) => (step.seconds[name] ? seconds(step.seconds[name]) : "–"))] }))} /></div>`
      : html`<div class="time-bars" role="img" tabindex="0" onKeyDown=${pressed} aria-label=${`Of ${plural(data.batches, "batch", "batches")}: ${known.map((name) => `${data.names[name]} ${share(data.sums[name] / whole)}`).join(", ")}`}>
        ${data.steps.map((step, place) => html`<span key=${step.at} class=${place === at ? "active" : null} onPointerEnter=${() => setSpot(place)}>${known.filter((name) => step.seconds[name]).map((name) => html`<i key=${name} class=${`p-${name.replace(" ", "-")}`} style=${{ height: `${(100 * step.seconds[name]) / sum(step.seconds)}%` }}></i>`)}</span>`)}</div>`}
    <ul class="legend" aria-label="Phases">${known.map((name) => html`<li key=${name}><i class=${`time-key p-${name.replace(" ", "-")}`} aria-hidden="true"></i> ${data.names[name]} <b>${share(data.sums[name] / whole)}</b></li>`)}</ul>
  </div>`;
}

const grows = (state) => (isMissing(state.per_day) ? "; how fast it grows is known after half an hour" : `, ${state.per_day < 0 ? "less" : "more"} by ${bytes(Math.abs(state.per_day))} a day since ${instant(state.since, { seconds: false })}`);

export const Times = ({ data, batch }) => html`<div class="column where-time">
    <${Card} title="Where the time goes" wide note=${data.batches ? `${plural(data.batches, "batch", "batches")} since ${instant(data.from)}` : null}>
      ${data.batches ? html`<${Bars} data=${data} />` : html`<${Empty}>No batch of this range is known. The driver keeps how long its newest batches took.<//>`}
      ${data.advice.map((each) => html`<${Note} key=${each.setting} tone="calm"><b><code>${each.setting}</code>: ${each.now} → ${each.to}</b>. ${each.why}. It should bring: <${Words} text=${each.brings} />.<//>`)}
      ${data.batches && !data.advice.length ? html`<p class="soft">${data.batches < 20 ? "Advice comes after 20 batches." : "No setting is known that would save much."}</p>` : null}
      ${isMissing(data.state.bytes) ? null : html`<p>State: ${bytes(data.state.bytes)} in the live checkpoint${grows(data.state)}. A batch puts in ${number(data.state.updated)} rows and takes out ${number(data.state.removed)}, on average.</p>`}
    <//>
    ${data.slowest.length ? html`<${Card} title="The slowest batches" wide><${Table} stack caption="The slowest batches, the slowest first" rowHead heads=${["Batch", "Began", { text: "Took", num: true }, { text: "Records", num: true }, { text: "Rows out", num: true }, { text: "State, at least", num: true }, { text: "Why", wide: true }]}
      rows=${data.slowest.map((each) => ({ key: `${each.timeline}/${each.batch}`, tone: String(each.batch) === batch ? "calm" : null, cells: [`${each.timeline}/${each.batch}`, html`<${Instant} at=${each.at} />`, seconds(each.seconds), number(each.read), number(each.emitted), seconds(each.state_s), each.reason] }))} /><//>` : null}
    ${data.runs.length ? html`<${Card} title="Reconcile and backfill" wide note="the last of each">${data.runs.map((run) => html`<div key=${run.kind}><h3>${run.kind} <code>${run.id}</code></h3>
      <p class="soft">${run.at ? html`<${Instant} at=${run.at} />: ` : null}${run.slowest}${isMissing(run.rows) ? "" : `, ${plural(run.rows, "row")}`}</p>
      <${Table} className="narrow" caption=${`Steps of the last ${run.kind}`} rowHead heads=${["Step", { text: "Seconds", num: true }]} rows=${Object.entries(run.seconds).map(([step, value]) => ({ key: step, cells: [step, seconds(value)] }))} /></div>`)}<//>` : null}
  </div>`;
