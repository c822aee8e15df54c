// Health: curves over a range under one cursor, with marks for what happened; the same as tables and a list.
import { html, useMemo } from "../vendor/preact-htm.js";
import { Curve, LETTERS, pointAt } from "../curve.js";
import { bytes, clock, duration, instant, isMissing, number, plural } from "../format.js";
import { Card, Instant, Loaded, Note, Table, Tag, toneOf } from "../parts.js";
import { useData } from "../poll.js";
import { Times } from "../times.js";

const RANGES = { "1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 days", "30d": "30 days" };
const rate = (value) => `${number(value)}/s`;
const seconds = (value) => (value < 90 ? `${number(Math.round(value * 100) / 100)} s` : value < 3 * 365 * 86400 ? duration(value) : `${number(Math.round(value / 365.25 / 8640) / 10)} years`);
const whole = (value) => number(Math.round(value));
const WATERMARK = "Watermark delay", REPLAYED_S = 30 * 86400, FEWEST = 12;
const minutes = (seconds_) => instant(seconds_ * 1000, { seconds: false, zone: false });
const CHARTS = [
  { key: "lag", title: "Lag", note: "records that wait in Kafka", format: whole, curves: [["all partitions", "lag"]], parts: true, wide: true },
  { key: "flow", title: "Records in, rows out", note: "a second", format: rate, curves: [["records in", "read_per_s"], ["rows out", "emitted_per_s"]] },
  { key: "watermark", title: WATERMARK, note: "the clock less the watermark", format: seconds, isTime: true, curves: [["", "watermark_delay_s"]] },
  { key: "batch", title: "Batch duration", note: "from plan to commit", format: seconds, isTime: true, curves: [["", "batch_s"]] },
  { key: "state", title: "State", note: "bytes in the live checkpoint", format: bytes, curves: [["", "state_bytes"]] },
  { key: "cpu", title: "CPU", note: "cores that the driver uses", format: (value) => number(Math.round(100 * value) / 100), curves: [["", "cpu_cores"]] },
  { key: "memory", title: "Memory", note: "resident bytes of the driver", format: bytes, curves: [["", "memory_bytes"]] },
];

function linesOf(chart, data) {
  const lines = chart.curves.filter(([, key]) => data.curves[key]).map(([name, key]) => ({ name, ...data.curves[key] }));
  const parts = chart.parts ? Object.values(data.parts) : [];
  if (parts.length > 1) lines.push({ name: `one of ${parts.length} partitions`, ...bandOf(parts) });
  return lines;
}

// One band for all partitions: the least, largest and mean of them in each step. Each partition has a column of the table.
function bandOf(parts) {
  const band = { least: [], most: [], mean: [] };
  for (let step = 0; step < parts[0].length; step += 1) {
    const known = parts.map((values) => values[step]).filter((value) => !isMissing(value)), is = (value) => (known.length ? value : null);
    band.least.push(is(Math.min(...known)));
    band.most.push(is(Math.max(...known)));
    band.mean.push(is(known.reduce((sum, value) => sum + value, 0) / known.length));
  }
  return band;
}

// Records of long ago that are replayed: their distance to the clock says nothing, so the watermark itself is drawn.
function inEventTime(chart, data) {
  const { mean, most, least } = data.curves.watermark_delay_s ?? {}, known = (mean ?? []).filter((value) => !isMissing(value));
  if (chart.key !== "watermark" || !known.length || Math.min(...known) < REPLAYED_S) return chart;
  const at = (values) => values.map((value, step) => (isMissing(value) ? null : data.times[step] - value));
  return { ...chart, title: "Watermark", note: `in event time: the records are ${duration(Math.min(...known))} old`, format: minutes, fromZero: false, lines: [{ name: "", mean: at(mean), least: at(most), most: at(least) }] };
}

// The range without the steps before the first one of which anything is known.
function since(data) {
  const curves = [...Object.values(data.curves).map((curve) => curve.most), ...Object.values(data.parts)];
  const first = data.times.findIndex((_, step) => data.states[step] || curves.some((values) => !isMissing(values[step])));
  const from = Math.min(Math.max(first, 0), data.times.length - FEWEST);
  if (from <= 0) return data;
  const cut = (values) => values.slice(from), each = (entries, change) => Object.fromEntries(Object.entries(entries).map(([key, value]) => [key, change(value)]));
  return { ...data, times: cut(data.times), states: cut(data.states), parts: each(data.parts, cut), curves: each(data.curves, (curve) => each(curve, cut)), nothing_before: data.times[from] };
}

function spans(states) { // runs of one state: { state, count }
  const found = [];
  for (const state of states) {
    if (found.length && found[found.length - 1].state === state) found[found.length - 1].count += 1;
    else found.push({ state, count: 1 });
  }
  return found;
}

function States({ data }) {
  const runs = spans(data.states), total = data.states.length;
  const sums = {};
  for (const { state, count } of runs) sums[state || "not known"] = (sums[state || "not known"] || 0) + count;
  const words = Object.entries(sums).map(([state, count]) => `${state} for ${duration(count * data.step_s)}`);
  return html`<${Card} title="Driver" wide note="the worst state of each step"><div class="strip" role="img" aria-label=${words.join(", ")}>${runs.map((run, place) => html`<i key=${place} class=${run.state ? `fill-${toneOf(run.state)}${run.state === "down" ? " fill-down" : ""}` : "fill-gap"} style=${{ width: `${(100 * run.count) / total}%` }} title=${`${run.state || "not known"}, ${duration(run.count * data.step_s)}`}></i>`)}</div>
    <ul class="legend">${Object.entries(sums).map(([state, count]) => html`<li key=${state}><${Tag} word=${state} tone=${state === "down" ? "bad" : undefined} /> ${duration(count * data.step_s)}</li>`)}</ul><//>`;
}

export default function Tab({ api, stamp, query, setQuery }) {
  const range = query.range in RANGES ? query.range : "6h";
  const answer = useData(api(`series?range=${range}`), stamp);
  const state = useMemo(() => ({ ...answer, data: answer.data && since(answer.data) }), [answer.data, answer.error]);
  const marks = useMemo(() => (state.data ? state.data.marks.map((mark) => ({ ...mark, seconds: Date.parse(mark.at) / 1000 })) : []), [state.data]);
  const charts = useMemo(() => (state.data ? CHARTS.map((chart) => inEventTime({ ...chart, lines: linesOf(chart, state.data) }, state.data)) : []), [state.data]);
  return html`<div>
    <div class="tools"><fieldset class="choices"><legend>Range</legend>${Object.entries(RANGES).map(([key, text]) => html`<label key=${key}><input type="radio" name="range" value=${key} checked=${key === range} onChange=${() => setQuery({ ...query, range: key })} /><span>${text}</span></label>`)}</fieldset>
      ${marks.length ? html`<ul class="legend marks" aria-label="Marks in the curves">${Object.entries(state.data.kinds).filter(([kind]) => marks.some((mark) => mark.kind === kind)).map(([kind, text]) => html`<li key=${kind}><b class="letter">${LETTERS[kind]}</b> ${text}</li>`)}</ul>` : null}</div>
    <${Loaded} state=${state}>${(data) => html`<div>
      ${Object.keys(data.curves).length ? null : html`<${Note} tone="none">No data in this range. The agent keeps samples while it runs: <code>rivertwice agent start</code>.<//>`}
      <div class="grid curves">
        <${States} data=${data} />
        ${charts.filter((chart) => chart.lines.length).map((chart) => html`<${Curve} key=${chart.key} title=${chart.title} note=${chart.note} times=${data.times} lines=${chart.lines} marks=${marks} format=${chart.format} range=${range} details=${chart.parts && Object.keys(data.parts).length > 1 ? Object.entries(data.parts).map(([name, values]) => ({ name: `${name}, largest`, mean: values })) : []} isTime=${chart.isTime} fromZero=${chart.fromZero ?? true} wide=${chart.wide} />`)}
        <${Card} title="What happened" wide note=${marks.length ? plural(marks.length, "mark") : null}><div class="tall"><${Table} caption="What happened in this range, newest first" rowHead heads=${["When", { text: "Mark", hidden: true }, { text: "What", wide: true }, { text: "In the curves", hidden: true }]}
          rows=${[...marks].reverse().map((mark) => ({ key: `${mark.at}${mark.text}`, cells: [html`<${Instant} at=${mark.at} />`, html`<b class="letter" title=${data.kinds[mark.kind]}>${LETTERS[mark.kind]}</b>`, mark.text, html`<button type="button" class="quiet" onClick=${() => pointAt(mark.seconds)}>Show in the curves<span class="unseen">: ${mark.text}</span></button>`] }))} empty="Nothing happened in this range." /></div><//>
      </div>
      <p class="soft">Each step is ${duration(data.step_s)}; a band is from the least to the largest figure of a step, a line is the mean. A gap: no data. ${data.nothing_before ? `Before ${clock(data.nothing_before * 1000)} nothing is known, so the range begins there. ` : ""}${data.from_ledger.length ? "Where the agent kept no samples, the figures are from the ledger." : ""} Times are in UTC.</p>
      <${Times} data=${data.time} batch=${query.batch} />
    </div>`}<//>
  </div>`;
}
