// What the person may do, and the dialog that asks before it is done. The server checks all of it again.
import { html, useState } from "./vendor/preact-htm.js";
import { AirflowLink, Confirm } from "./parts.js";
import { newId, useData } from "./poll.js";

// Returns { find(name): the act, or null if the person may not or the DAG does not exist, known: whether that is known yet }.
export function useActs(api) {
  const state = useData(api("acts"));
  const acts = state.data?.acts || [];
  return { known: state.data !== null, error: state.error, find: (name) => acts.find((each) => each.act === name) || null };
}

// What became of it: a DAG run to look at, or a sentence.
export function Done({ done }) {
  if (!done) return null;
  const text = done.repeated ? "Was done already" : done.run ? "Started" : "Done";
  return html`<span class="done" role="status">${text}${done.run ? html`: <${AirflowLink} dag=${done.dag} run=${done.run}>${done.dag}<//>` : ""} by ${done.by}.${done.paused ? html` <b>${done.dag} is paused in Airflow, so the run waits until somebody unpauses it.</b>` : ""}</span>`;
}

// A button of an act that the person may do; nothing if they may not. children: the preview, shown in the dialog.
export function ActButton({ spec, name, act, fields = {}, label, primary = false, onDone, children }) {
  const [asked, setAsked] = useState(null), [done, setDone] = useState(null);
  if (!spec) return null;
  async function confirmed({ confirm, reason }) {
    const answer = await act(spec.act, { id: asked, reason, confirm, fields });
    setDone(answer);
    setAsked(null);
    if (onDone) onDone(answer);
  }
  // The id is made once for each dialog: who presses again after an answer was lost asks for the same act.
  return html`<span class="act"><button type="button" class=${primary ? "primary" : ""} onClick=${() => setAsked(newId())}>${label || spec.title}</button>
    <${Done} done=${done} />
    ${asked ? html`<${Confirm} title=${`${spec.title}: ${name}`} name=${name} verb=${spec.title} typed=${spec.changes_served} onConfirm=${confirmed} onClose=${() => setAsked(null)}><p>${spec.says}</p>${children}<//>` : null}</span>`;
}
