// The newest reconcile in figures, and the runs before it.
import { html } from "./vendor/preact-htm.js";
import { instant, number, share } from "./format.js";
import { Ago, Bar, Card, Empty, Facts, Note, Stale, Table, Tag, toneOf } from "./parts.js";

export const ALL = ["DEFECT", "NOT_COMPARABLE", "LATE", "OPEN", "AGREES"];
export const Counts = ({ counts }) => html`<span>${ALL.filter((word) => counts[word]).map((word) => html`<span key=${word}> <${Tag} word=${word} /> ${number(counts[word])} </span>`)}</span>`;

export function staleOf(run) {
  if (run.moved) return run.moved;
  if (run.published) return `${run.published === 1 ? "a backfill was" : `${run.published} backfills were`} published after it`;
  return null;
}

export function Newest({ data, actions }) {
  const run = data.run, total = run.balance.total || run.balance;
  const pairs = Object.entries(run.counts).sort(([one], [other]) => (one === "served" ? -1 : other === "served" ? 1 : 0));
  return html`<${Card} title="Newest reconcile" note=${html`each pair against the truth, <${Ago} at=${run.at} />`} actions=${actions}>
    <p><${Tag} word=${run.gate.passed ? "passed" : "failed"} /> as of batch ${run.timeline}/${run.batch}, sequence ${run.sequence}<${Stale} why=${staleOf(run)} /></p>
    <${Table} caption="Rows by verdict" heads=${["Pair", "Rows", ...ALL.map((word) => ({ text: word.replace("_", " "), num: true }))]} rowHead
      rows=${pairs.map(([pair, counts]) => ({ key: pair, cells: [pair, html`<${Bar} label=${pair} parts=${ALL.map((word) => ({ word, count: counts[word] || 0 }))} />`, ...ALL.map((word) => number(counts[word] || 0))] }))} />
    <${Facts} pairs=${[
      ["Balance", `${number(total.read)} read = ${number(total.emitted)} emitted + ${number(total.open)} open + ${number(total.late)} late + ${number(total.dead)} dead + ${number(total.excluded)} excluded`],
      ...run.gate.alerts.filter((alert) => alert.kind === "dead_share").map((alert) => ["Newest records", html`<span class="row-words t-warn">${alert.message}</span>`]),
      ["Late share", total.late_share === undefined ? "–" : share(total.late_share)],
      ["Without a cause", html`<span class=${total.unexplained ? "row-words t-bad" : ""}>${number(total.unexplained)}</span>`],
      ["Run", html`<span class="mono">${run.run}</span>, ${instant(run.at)}, took ${number(run.duration_s)} s`],
    ]} />
    ${run.gate.alerts.length ? html`<details><summary>${run.gate.alerts.length} findings of its gate</summary><ul class="lines">${run.gate.alerts.map((alert, place) => html`<li key=${place}><${Tag} word=${alert.severity} /> ${alert.kind}: ${alert.message}</li>`)}</ul></details>` : null}<//>`;
}

export function Trend({ data, pair }) {
  const rows = data.trend;
  if (rows.length < 2) return html`<${Card} title="Trend"><${Empty}>One run so far.<//><//>`;
  const of = (run) => run.counts[pair] || {};
  const words = rows.map((run) => `${instant(run.at)}: ${ALL.filter((word) => of(run)[word]).map((word) => `${of(run)[word]} ${word}`).join(", ")}`);
  return html`<${Card} title="Trend" note=${`${pair} against truth, the last ${rows.length} runs, share of the closed rows that do not agree`}>
    <div class="trend" role="img" aria-label=${`The newest run: ${words[words.length - 1]}`}>${rows.map((run, place) => {
      const counts = of(run), closed = ALL.filter((word) => word !== "OPEN").reduce((sum, word) => sum + (counts[word] || 0), 0) || 1;
      return html`<i key=${run.run} title=${words[place]}>${ALL.filter((word) => word !== "OPEN").map((word) => html`<b key=${word} class="fill-${toneOf(word)}" style=${{ height: `${(100 * (counts[word] || 0)) / closed}%` }} />`)}</i>`;
    })}</div>
    <details><summary>The runs as a table</summary><${Table} caption="Runs of the reconcile, newest first" heads=${["Run", ...ALL.map((word) => ({ text: word, num: true }))]} rowHead
      rows=${rows.slice().reverse().map((run) => ({ key: run.run, cells: [instant(run.at), ...ALL.map((word) => number(of(run)[word] || 0))] }))} /></details><//>`;
}

const causeText = (cause) => [cause.cause, cause.address, cause.batch === null ? null : `batch ${cause.batch}`, cause.event_time ? `event ${instant(cause.event_time)}` : null, cause.watermark ? `watermark ${instant(cause.watermark)}` : null, cause.address ? null : cause.detail].filter(Boolean).join(" · ");

export function Differing({ data, onExplain }) {
  const { open, waiting, repaired, totals } = data;
  const more = (kind, rows) => (totals[kind] > rows.length ? html`<p class="soft">the first ${rows.length} of ${number(totals[kind])}</p>` : null);
  const explain = (row) => (row.key === null ? null : html`<button type="button" class="quiet" onClick=${() => onExplain(row.start, row.key)} aria-label=${`Explain ${row.label}, ${instant(row.start)}`}>Explain</button>`);
  return html`<${Card} title="What does not agree" wide>
    ${totals.open ? html`<${Table} caption="Served rows that do not agree, the worst first" showCaption heads=${["Window", "Key", "Served", "Stream", { text: "Late", num: true }, { text: "Why", wide: true }, { text: "Explain", hidden: true }]} rowHead
      rows=${open.map((row) => ({ key: row.start + row.key, cells: [instant(row.start, { seconds: false }), row.label, html`<${Tag} word=${row.pairs.served} />`, row.pairs.stream ? html`<${Tag} word=${row.pairs.stream} />` : "–", number(row.late),
        html`<div>${row.reason}${row.published ? html`<${Stale} why=${`${row.published} was published for it after the verdict`} />` : null}${row.causes.map((cause, place) => html`<div key=${place} class="mono">${causeText(cause)}</div>`)}${row.more ? html`<div class="soft">and ${row.more} more</div>` : null}</div>`, explain(row)] }))} />${more("open", open)}` : html`<${Note} tone="good">Every closed row that is served agrees with the truth, as of this reconcile.<//>`}
    ${totals.waiting ? html`<${Table} caption="Windows that were open" showCaption heads=${["Window", "Until", { text: "Rows", num: true }]} rowHead rows=${waiting.map((row) => ({ key: row.start, cells: [instant(row.start, { seconds: false }), instant(row.end, { seconds: false }), number(row.rows)] }))} />${more("waiting", waiting)}` : null}
    ${totals.repaired ? html`<details><summary>${number(totals.repaired)} rows were repaired: the stream's row differs, what is served agrees</summary><${Table} caption="Repaired rows, newest first" heads=${["Window", "Key", "Stream", { text: "Late", num: true }, "Why", { text: "Explain", hidden: true }]} rowHead
      rows=${repaired.map((row) => ({ key: row.start + row.key, cells: [instant(row.start, { seconds: false }), row.label, html`<${Tag} word=${row.pairs.stream} />`, number(row.late), row.reason, explain(row)] }))} />${more("repaired", repaired)}</details>` : null}<//>`;
}
