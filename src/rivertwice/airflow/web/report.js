// The report of one run, which a task in Airflow links to.
import { html } from "./vendor/preact-htm.js";
import { Card, Instant, Loaded, Tag, Words } from "./parts.js";
import { useData } from "./poll.js";

export function Report({ base, run, onClose }) {
  const state = useData(`${base}/report?run=${encodeURIComponent(run)}`);
  const close = html`<button type="button" class="quiet" onClick=${onClose}>Close</button>`;
  return html`<${Card} wide title=${`Report of ${run}`} actions=${close}><${Loaded} state=${state}>${(report) => html`<div>
    <p>${report.kind} ${report.passed === null ? null : html`<${Tag} word=${report.passed ? "passed" : "refused"} />`} ${report.at ? html`<${Instant} at=${report.at} />` : null}</p>
    <ul class="lines">${report.lines.map((line, index) => html`<li key=${index}><${Words} text=${line} /></li>`)}</ul></div>`}<//><//>`;
}
