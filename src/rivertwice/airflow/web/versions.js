// Versions of a pipeline side by side, how they compare, and what a switch asks a person.
import { html, useState } from "./vendor/preact-htm.js";
import { ActDialog } from "./acting.js";
import { number, plural } from "./format.js";
import { Ago, AirflowLink, Bar, Card, Empty, Instant, Loaded, Note, Table, Tag, Words } from "./parts.js";
import { useData } from "./poll.js";

const BUTTONS = { compare: "Compare and ask…", serve: "Compare and ask…", back: "Roll back to it…", accept: "Ask a person…" };

export function Versions({ name, api, stamp, every, acts, act, onDone }) {
  const state = useData(api("versions"), stamp, { every });
  const [asked, setAsked] = useState(null);
  const known = asked && acts.find(asked.act);
  return html`<${Card} title="Versions" wide>
    <${Loaded} state=${state}>${({ versions, question }) => html`<div>
      ${question ? html`<${Question} question=${question} acts=${acts} onAsk=${setAsked} />` : null}
      ${versions.length ? html`<${Side} versions=${versions} acts=${acts} onAsk=${setAsked} />` : html`<${Empty}>One definition serves, and none runs beside it. <code>rivertwice upgrade ${name} --new-version</code> begins one.<//>`}
    </div>`}<//>
    ${known ? html`<${ActDialog} key=${asked.act} spec=${known} name=${name} act=${act} fields=${asked.fields} onDone=${onDone} title=${asked.title} onClose=${() => setAsked(null)}>${asked.body ? html`<${Body} text=${asked.body} />` : null}<//>` : null}
  <//>`;
}

function Question({ question, acts, onAsk }) {
  const fields = { run: question.run };
  const ask = (verb, title) => (acts.find(verb) ? html`<button type="button" class=${verb === "switch.approve" ? "primary" : ""} onClick=${() => onAsk({ act: verb, fields, title, body: question.body })}>${acts.find(verb).title}…</button>` : null);
  return html`<section class="question" aria-label="A run waits for an answer"><h3>Waits for an answer <${Ago} at=${question.at} before="since " after="" /></h3>
    <p><b>${question.subject}</b> <span class="soft">in <${AirflowLink} dag=${question.dag} run=${question.run}>${question.dag}<//></span></p>
    <${Body} text=${question.body} />
    <div class="buttons start">${ask("switch.approve", question.subject)}${ask("switch.reject", question.subject)}</div></section>`;
}

function Side({ versions, acts, onAsk }) {
  const next = (version) => (BUTTONS[version.next.act] && acts.find("switch")
    ? html`<button type="button" onClick=${() => onAsk({ act: "switch", fields: { version: version.next.version }, title: `Let ${version.next.version} serve?` })}>${BUTTONS[version.next.act]}</button>` : null);
  return html`<${Table} caption="Versions side by side" rowHead heads=${["Version", "State", { text: "Batches", num: true }, "Proved up to", { text: "Newest comparison", wide: true }, { text: "Next", wide: true }]}
    rows=${versions.map((version) => ({ key: version.name, cells: [
      html`<b>${version.name}</b>${version.since ? html`<br /><span class="soft">since <${Instant} at=${version.since} /></span>` : null}`,
      html`<span class="stack"><${Tag} word=${version.serves ? "serves" : "beside"} tone=${version.serves ? "good" : "none"} /><span class="soft">${version.state}</span></span>`,
      number(version.batches), version.proved_until ? html`<${Instant} at=${version.proved_until} />` : "not proved",
      version.comparison || version.accepted ? html`<div class="stack">${version.accepted ? html`<${Accepted} found=${version.accepted} />` : null}${version.comparison ? html`<${Comparison} found=${version.comparison} />` : null}</div>` : "–",
      html`<span class="stack">${version.next.text ? html`<${Words} text=${version.next.text} />` : "–"}${next(version)}</span>`,
    ] }))} />`;
}

function Accepted({ found }) {
  const side = (of) => `${plural(of.rows, "row")} of ${of.version}`;
  return html`<div class="stack"><span>accepted by ${found.by} <${Ago} at=${found.at} /></span><span>${found.reason}</span>
    ${found.different.map((why) => html`<span key=${why} class="soft">${why}</span>`)}
    <span class="soft">${side(found.before)} before, ${side(found.after)} after</span></div>`;
}

function Comparison({ found }) {
  const counts = found.counts;
  if (found.different.length) return html`<div class="stack"><span>not compared <${Ago} at=${found.at} /></span>${found.different.map((why) => html`<span key=${why} class="soft">${why}</span>`)}</div>`;
  const parts = [["equal", counts.equal, "good"], ["declared", counts.declared, "calm"], ["late", counts.late, "warn"], ["without a cause", counts.unexplained, "bad"]];
  return html`<div class="stack"><span><${Tag} word=${found.passed ? "passed" : "refused"} /> <${Ago} at=${found.at} /></span>
    <${Bar} label="Rows" parts=${parts.map(([word, count, tone]) => ({ word, count, tone }))} />
    <span class="soft">${parts.map(([word, count]) => `${number(count)} ${word}`).join(", ")}, ${plural(counts.windows, "window")}${found.left_out ? `, ${found.left_out} left out` : ""}</span>
    ${found.reasons.map((why) => html`<span key=${why} class="t-bad act-error"><${Words} text=${why} /></span>`)}
    ${found.examples.map((row) => html`<span key=${`${row.start}${row.kind}`} class="soft">for example a row of [${row.start}, ${row.end}) is ${row.kind}</span>`)}</div>`;
}

// What a task asks is Markdown: paragraphs, tables, lists. It is shown as text; it never becomes HTML.
function Body({ text }) {
  const plain = (part) => part.replaceAll("**", "");
  return html`<div class="asked">${text.split("\n\n").filter(Boolean).map((block, index) => {
    if (block.startsWith("|")) {
      const [heads, , ...rows] = block.split("\n").map((line) => line.split("|").slice(1, -1).map((cell) => cell.trim()));
      return html`<${Table} key=${index} caption="Figures" rowHead heads=${heads.map((head) => ({ text: head, num: head === "number" }))} rows=${rows.map((cells) => cells.map((cell) => html`<${Words} text=${cell} />`))} />`;
    }
    if (block.startsWith("- ")) return html`<ul key=${index} class="lines">${block.split("\n").map((line) => html`<li key=${line}><${Words} text=${plain(line.slice(2))} /></li>`)}</ul>`;
    return html`<p key=${index}><${Words} text=${plain(block)} /></p>`;
  })}</div>`;
}
