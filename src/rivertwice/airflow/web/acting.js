// What is done to savepoints, versions and records beside the result: at once, or after a look at what would happen.
import { html, useState } from "./vendor/preact-htm.js";
import { Done } from "./acts.js";
import { Busy, Confirm, Dialog, Note, Table, Words } from "./parts.js";
import { newId, useData } from "./poll.js";

// Returns [started, begun]: the acts that were asked for here, newest first, and what to call with the answer to one.
export function useStarted() {
  const [started, setStarted] = useState([]);
  return [started, (done) => setStarted((before) => [done, ...before.filter((each) => each.run !== done.run)].slice(0, 4))];
}

export const Started = ({ started }) => (started.length ? html`<div class="started">${started.map((done) => html`<p key=${done.run}><${Done} done=${done} /></p>`)}</div>` : null);

// A button that does an act at once: only for what changes nothing that is served.
export function Direct({ spec, act, fields = {}, onDone, why, quiet = true }) {
  const [error, setError] = useState(null), [busy, setBusy] = useState(false);
  if (!spec) return null;
  async function press() {
    setBusy(true);
    setError(null);
    try {
      onDone(await act(spec.act, { id: newId(), fields }));
    } catch (failure) {
      setError(failure.message);
    }
    setBusy(false);
  }
  return html`<span class="act"><button type="button" class=${quiet ? "quiet" : ""} disabled=${busy || Boolean(why)} title=${why || spec.says} onClick=${press}>${busy ? "Starting…" : spec.title}</button>
    ${error ? html`<span role="alert" class="t-bad act-error">${error}</span>` : null}</span>`;
}

// The dialog of an act: what would happen (of `path`, if it has a preview), or why it is refused; then the reason and the typed name.
export function ActDialog({ spec, name, act, path = null, fields = {}, title, verb, check, options = null, onDone, onClose, children }) {
  const [id] = useState(newId); // who presses again after an answer was lost asks for the same act
  const [opened] = useState(() => Date.now());
  const state = useData(path ? `${path}${path.includes("?") ? "&" : "?"}at=${opened}` : null);
  const shown = state.data, refusals = state.error ? [state.error] : (shown?.refusals ?? []);
  if (path && !shown && !state.error) return html`<${Dialog} title=${title} onClose=${onClose}><${Busy}>Looking at what would happen…<//><//>`;
  if (refusals.length) {
    return html`<${Dialog} title=${title} onClose=${onClose}>
      <${Note} tone="bad"><b>This would be refused.</b>${refusals.map((why) => html`<p key=${why}><${Words} text=${why} /></p>`)}<//>
      ${options}${shown?.rows ? html`<${Preview} shown=${shown} />` : null}
      <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div><//>`;
  }
  async function confirmed({ confirm, reason }) {
    const wrong = check ? check() : null;
    if (wrong) throw new Error(wrong);
    onDone(await act(spec.act, { id, fields, confirm, reason }));
    onClose();
  }
  return html`<${Confirm} title=${title} name=${name} verb=${verb || spec.title} typed=${spec.changes_served} onConfirm=${confirmed} onClose=${onClose}>
    <p class="says">${spec.says}</p>${options}${children}${shown?.rows ? html`<${Preview} shown=${shown} />` : null}<//>`;
}

function Preview({ shown }) {
  return html`<div class="preview">
    ${shown.resumes ? html`<${Note} tone="warn">${shown.resumes} was cut off and is resumed.<//>` : null}
    ${shown.warning ? html`<${Note} tone="warn">${shown.warning}<//>` : null}
    <${Table} caption="What would happen" rowHead heads=${["What", "How much"]} rows=${shown.rows.map(([what, much]) => ({ key: what, cells: [what, String(much)] }))} />
    ${shown.reread?.length ? html`<${Table} caption="Read again, by partition" showCaption rowHead heads=${["Partition", { text: "From", num: true }, { text: "To", num: true }, { text: "Kafka begins at", num: true }]}
      rows=${shown.reread.map((part) => ({ key: part.partition, cells: [part.partition, part.start, part.end, part.log_begins] }))} />` : null}
    <details><summary>Steps</summary><ol class="steps">${shown.steps.map((step) => html`<li key=${step.number}>${step.does} <span class="soft">(${step.state})</span></li>`)}</ol></details>
  </div>`;
}
