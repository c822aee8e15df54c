// Doing an act: a preview, a typed name where served rows may change, a reason; then the run that does it, with its link.
import { html, useState } from "./vendor/preact-htm.js";
import { AirflowLink, Busy, Confirm, Dialog, Note, Table, Words } from "./parts.js";
import { useData } from "./poll.js";

const identity = () => (globalThis.crypto?.randomUUID ? crypto.randomUUID() : Array.from({ length: 4 }, () => Math.random().toString(36).slice(2, 10)).join("-"));

// What the person may do: act -> its words.
export function useActs(api) {
  const state = useData(api("acts"));
  return new Map((state.data?.acts ?? []).map((each) => [each.act, each]));
}

// Returns [do it, what was started]. `perform(name, fields, { confirm, reason })` rejects with the server's reason.
export function usePerform(act) {
  const [started, setStarted] = useState([]);
  async function perform(name, fields = {}, { confirm = "", reason = "" } = {}) {
    const done = await act(name, { id: identity(), fields, confirm, reason });
    setStarted((before) => [{ ...done, key: `${done.run}:${name}` }, ...before].slice(0, 4));
    return done;
  }
  return [perform, started];
}

export const Started = ({ started }) => html`<div role="status" class="started">${started.map((each) => html`<${Note} key=${each.key} tone=${each.paused ? "warn" : "good"}>
  ${each.repeated ? "Asked for before: " : "Started: "}<${AirflowLink} dag=${each.dag} run=${each.run}>${each.dag}<//>, as ${each.by}.
  ${each.paused ? html` The DAG is paused, so the run waits: <${AirflowLink} dag=${each.dag}>unpause it</a>.` : null}<//>`)}</div>`;

// A button that does an act at once: only for what changes nothing served.
export function ActButton({ acts, name, fields, perform, title, why, quiet = true }) {
  const [error, setError] = useState(null), [busy, setBusy] = useState(false);
  const known = acts.get(name);
  if (!known) return null;
  async function press() {
    setBusy(true);
    setError(null);
    try {
      await perform(name, fields);
    } catch (failure) {
      setError(failure.message);
    }
    setBusy(false);
  }
  return html`<span><button type="button" class=${quiet ? "quiet" : ""} disabled=${busy || Boolean(why)} title=${why || known.says} onClick=${press}>${busy ? "Starting…" : title || known.title}</button>
    ${error ? html`<span role="alert" class="t-bad act-error">${error}</span>` : null}</span>`;
}

// The dialog of an act that has a preview: what would happen, or why it is refused.
export function PreviewDialog({ act, name, path, fields, perform, onClose, title, children }) {
  const [opened] = useState(() => Date.now());
  const state = useData(path ? `${path}${path.includes("?") ? "&" : "?"}at=${opened}` : null);
  const shown = state.data;
  const refusals = state.error ? [state.error] : (shown?.refusals ?? []);
  if (path && !shown && !state.error) return html`<${Dialog} title=${title} onClose=${onClose}><${Busy}>Looking at what would happen…<//><//>`;
  if (refusals.length) {
    return html`<${Dialog} title=${title} onClose=${onClose}>
      <${Note} tone="bad"><b>This would be refused.</b>${refusals.map((why) => html`<p key=${why}><${Words} text=${why} /></p>`)}<//>
      ${shown?.rows ? html`<${Preview} shown=${shown} />` : null}
      <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div><//>`;
  }
  const submit = async (typed) => { await perform(act.act, fields, typed); onClose(); };
  return html`<${Confirm} title=${title} name=${name} verb=${act.title} typed=${act.changes_served} onConfirm=${submit} onClose=${onClose}>
    <p class="says">${act.says}</p>${children}${shown?.rows ? html`<${Preview} shown=${shown} />` : null}<//>`;
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
