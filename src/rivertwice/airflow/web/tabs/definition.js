// The definition as it runs: its files, how it differs from another one, what it promises, what its checks found.
import { html } from "../vendor/preact-htm.js";
import { plural } from "../format.js";
import { AirflowLink, Card, Empty, Facts, Instant, Loaded, Note, Runbook, Words } from "../parts.js";
import { useData } from "../poll.js";

// The kind of each line of a unified diff. A hunk's head says how many lines it has: a removed SQL comment looks like the head of a file.
function kindsOf(lines) {
  let before = 0, after = 0;
  return lines.map((line) => {
    if (before <= 0 && after <= 0) {
      const counts = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(line);
      if (!counts) return "file";
      [before, after] = [Number(counts[1] ?? 1), Number(counts[2] ?? 1)];
      return "place";
    }
    if (line[0] !== "+") before -= 1;
    if (line[0] !== "-") after -= 1;
    return { "+": "added", "-": "removed" }[line[0]] ?? "same";
  });
}

function Diff({ lines, title }) {
  if (!lines.length) return html`<${Empty}>The same files, byte by byte.<//>`;
  const kinds = kindsOf(lines);
  return html`<pre class="code diff" tabindex="0" aria-label=${title}>${lines.map((line, place) => html`<span key=${place} class="diff-${kinds[place]}">${line}</span>`)}</pre>`;
}

export default function Tab({ name, api, query, setQuery, stamp }) {
  const other = query.other || "";
  const state = useData(api(`definition${other ? `?other=${encodeURIComponent(other)}` : ""}`), stamp, { every: stamp ? 0 : 15_000 });
  return html`<${Loaded} state=${state}>${(data) => html`<div class="column">
    ${data.runs ? null : html`<${Note} tone="none">No batch ran with it yet: these are the project's files.<//>`}
    <${Card} title="About"><${Facts} pairs=${[
      ["What it is", data.description], ["Owner", data.owner], data.runbook && ["Runbook", html`<${Runbook} text=${data.runbook} />`], ["Bundle", html`<code title=${data.bundle}>${data.bundle.slice(0, 12)}</code>`],
      ["Runs since", data.since ? html`<${Instant} at=${data.since} />` : null],
      ["Checks", data.checked_at ? html`<span>${data.findings.length ? `${data.findings.length} findings` : "hold"}, checked <${Instant} at=${data.checked_at} /></span>` : html`<${Words} text=${`not with this Spark: \`rivertwice lint ${name}\``} />`],
      ["Cases", data.cases ? html`<span>${data.cases.failed.length ? html`<b>${plural(data.cases.failed.length, "case")} of ${data.cases.count} failed</b> (${data.cases.failed.join(", ")}) <${Instant} at=${data.cases.at} />; all passed last: ${data.cases.passed_at ? html`<${Instant} at=${data.cases.passed_at} />` : "never"}` : html`${plural(data.cases.count, "case")} passed <${Instant} at=${data.cases.at} />`}</span>` : html`<${Words} text=${`not run with these files: \`rivertwice test ${name}\``} />`],
      ["DAGs", html`<span class="dag-links">${data.dags.map((verb) => html`<${AirflowLink} key=${verb} dag=${`${verb}__${name.replace("@", ".")}`}>${verb}<//> `)}</span>`],
    ]} />
    ${[...data.findings, ...data.risks].map((text) => html`<${Note} key=${text} tone="warn"><${Words} text=${text} /><//>`)}<//>
    <${Card} title="Compared" actions=${html`<label class="field inline"><span class="unseen">Compare with</span><select value=${other} onChange=${(event) => setQuery({ ...query, other: event.target.value })}><option value="">compare with …</option>${data.others.map((each) => html`<option key=${each.id} value=${each.id}>${each.title}</option>`)}</select></label>`}>
      ${data.other === null ? html`<${Empty}>Choose what to compare it with: lines that it has more are green, lines that it lacks are red.<//>` : html`<${Diff} lines=${data.diff} title=${`What runs, against ${data.other}`} />`}<//>
    ${data.files.map((file) => html`<${Card} key=${file.path} title=${file.path}><pre class="code" tabindex="0" aria-label=${file.path}>${file.text}</pre><//>`)}
    <${Card} title="What it promises and depends on"><${Facts} pairs=${Object.entries(data.contract)} /><//>
  </div>`}<//>`;
}
