// Dead letters by reason with a sample, and the windows that wait for a correction of late rows.
import { html, useState } from "../vendor/preact-htm.js";
import { ActDialog, Started, useStarted } from "../acting.js";
import { duration, isMissing, number, plural } from "../format.js";
import { Ago, Bar, Busy, Card, Dialog, Facts, Instant, Loaded, Note, Table, Tag } from "../parts.js";
import { useData } from "../poll.js";

const STATES = ["open", "amended", "discarded", ""];
const STATE_TONES = { open: "warn", amended: "good", discarded: "none", due: "warn", waiting: "calm", beyond: "none" };

export default function Tab({ name, stamp, api, act, query, setQuery, acts }) {
  const [started, onDone] = useStarted();
  const every = started.length ? 5000 : 60000;
  const state = query.state ?? "open", kind = query.kind ?? "";
  const letters = useData(api(`dead-letters?state=${state}&kind=${encodeURIComponent(kind)}`), stamp, { every });
  const late = useData(api("late"), stamp, { every });
  const [asked, setAsked] = useState(null);
  const close = () => setAsked(null);
  return html`<div>
    <${Started} started=${started} />
    <${Card} title="Dead letters" note="Records that the definition could not accept. They stay in the log." wide>
      <${Loaded} state=${letters}>${(data) => html`<div>
        <${Counts} data=${data} kind=${kind} acts=${acts} onAsk=${setAsked} onKind=${(next) => setQuery({ ...query, kind: next })} />
        <fieldset class="choices spaced"><legend>State</legend>${STATES.map((each) => html`<label key=${each}><input type="radio" name="state" checked=${each === state} onChange=${() => setQuery({ ...query, state: each })} /><span>${each || "all"} <b>${each ? data.totals[each] : Object.values(data.totals).reduce((sum, count) => sum + count, 0)}</b></span></label>`)}</fieldset>
        <${Sample} data=${data} kind=${kind} acts=${acts} onAsk=${setAsked} /></div>`}<//>
    <//>
    <${Card} title="Late queue" note="Windows that serve less than the log holds." wide actions=${acts.find("late.correct") && !isMissing(late.data?.debounce_s) ? html`<button type="button" onClick=${() => setAsked({ act: "late.correct" })}>Correct what is due…</button>` : null}>
      <${Loaded} state=${late}>${(data) => html`<${Late} data=${data} />`}<//>
    <//>
    ${asked?.act === "dead.amend" ? html`<${Amend} api=${api} acts=${acts} place=${asked.place} act=${act} onDone=${onDone} onClose=${close} />` : null}
    ${asked?.act === "dead.discard" ? html`<${Discard} api=${api} acts=${acts} asked=${asked} act=${act} onDone=${onDone} onClose=${close} />` : null}
    ${asked?.act === "late.correct" ? html`<${ActDialog} spec=${acts.find("late.correct")} name=${name} act=${act} onDone=${onDone} title="Correct what is due" onClose=${close}><p>${late.data?.text}</p><//>` : null}
  </div>`;
}

function Counts({ data, kind, acts, onAsk, onKind }) {
  const parts = (row) => ["open", "amended", "discarded"].map((word) => ({ word, count: row[word], tone: STATE_TONES[word] }));
  return html`<${Table} caption="Dead letters by reason" rowHead empty="No record was refused." heads=${["Reason", { text: "Open", num: true }, { text: "Amended", num: true }, { text: "Discarded", num: true }, { text: "Share", wide: true }, { text: "Acts" }]}
    rows=${data.counts.map((row) => ({ key: row.reason, tone: row.reason === kind ? "calm" : null, cells: [
      html`<button type="button" class="quiet" aria-pressed=${row.reason === kind ? "true" : "false"} onClick=${() => onKind(row.reason === kind ? "" : row.reason)}>${row.reason}</button>`, number(row.open), number(row.amended), number(row.discarded),
      html`<${Bar} label=${row.reason} parts=${parts(row)} />`,
      row.open && acts.find("dead.discard") ? html`<button type="button" class="quiet" onClick=${() => onAsk({ act: "dead.discard", kind: row.reason })}>Discard all open…</button>` : null,
    ] }))} />
    ${data.oldest_open ? html`<p class="soft">The oldest open one was read <${Ago} at=${data.oldest_open} />. While it is open, the log keeps it from being deleted unseen.</p>` : null}`;
}

function Sample({ data, kind, acts, onAsk }) {
  const buttons = (letter) => html`<span class="act-row">${acts.find("dead.amend") ? html`<button type="button" class="quiet" onClick=${() => onAsk({ act: "dead.amend", place: letter.place })}>Amend…</button>` : null}
    ${letter.state === "open" && acts.find("dead.discard") ? html`<button type="button" class="quiet" onClick=${() => onAsk({ act: "dead.discard", place: letter.place })}>Discard…</button>` : null}</span>`;
  return html`<div>${data.values || !data.chosen ? null : html`<p class="soft">The records' values are shown to those who may amend them.</p>`}
    <${Table} caption=${`${data.sample.length} of ${plural(data.chosen, "dead letter")}${kind ? ` with the reason ${kind}` : ""}`} showCaption rowHead empty="No such dead letters."
      heads=${["Place", "State", { text: "Why it was refused", wide: true }, "Record time", { text: "Value", wide: true }, "Acts"]}
      rows=${data.sample.map((letter) => ({ key: `${letter.topic}/${letter.place}`, cells: [
        html`<span class="mono">${letter.place}</span><br /><span class="soft">batch ${letter.batch} of ${letter.timeline}</span>`,
        html`<span class="stack"><${Tag} word=${letter.state} tone=${STATE_TONES[letter.state]} />${letter.decided ? html`<span class="soft">by ${letter.decided.by}, <${Ago} at=${letter.decided.at} />: ${letter.decided.why}</span>` : null}</span>`,
        html`<b>${letter.reason}</b>${letter.detail ? html`<br /><span class="soft">${letter.detail}</span>` : null}`, html`<${Instant} at=${letter.record_time} />`,
        letter.value === null ? html`<span class="soft">${data.values ? "no value" : "not shown"}</span>` : html`<code class="value">${letter.value}</code>`, buttons(letter),
      ] }))} /></div>`;
}

// The value as it should have been, beside the value as it is.
function Amend({ api, acts, place, act, onDone, onClose }) {
  const state = useData(api(`letter?place=${encodeURIComponent(place)}`));
  const [value, setValue] = useState(null);
  const letter = state.data, title = `Amend ${place}`;
  if (!letter) return html`<${Dialog} title=${title} onClose=${onClose}>${state.error ? html`<${Note} tone="bad">${state.error}<//>` : html`<${Busy} />`}<//>`;
  const now = value ?? letter.value ?? "", cut = letter.bytes > 20000;
  const check = () => (cut ? "The value is too long for this form." : now === (letter.value ?? "") ? "This is the value that was refused: change it." : null);
  return html`<${ActDialog} spec=${acts.find("dead.amend")} name=${place} act=${act} fields=${{ place, value: now }} check=${check} title=${title} onDone=${onDone} onClose=${onClose}>
    <${Facts} pairs=${[["Refused for", `${letter.reason}${letter.detail ? `: ${letter.detail}` : ""}`], ["Key", letter.key ?? "none"], ["Headers", letter.headers?.length ? letter.headers.map(([head, text]) => `${head}=${text}`).join(", ") : "none"], ["What follows", letter.then]]} />
    ${cut ? html`<${Note} tone="warn">The value is too long for this form: <code>rivertwice dead amend --file</code>.<//>` : html`<label class="field own-line"><span>Value, as it should have been</span><textarea class="mono" rows="8" spellcheck=${false} value=${now} onInput=${(event) => setValue(event.target.value)}></textarea></label>`}
    ${value !== null && letter.value ? html`<details open><summary>As it is</summary><code class="value">${letter.value}</code></details>` : null}<//>`;
}

function Discard({ api, acts, asked, act, onDone, onClose }) {
  const fields = asked.place ? { place: asked.place } : { kind: asked.kind };
  const [opened] = useState(() => Date.now());
  const state = useData(api(`preview/discard?${new URLSearchParams({ ...fields, at: opened })}`));
  const title = asked.place ? `Discard ${asked.place}` : `Discard all open ones with the reason ${asked.kind}`;
  if (!state.data) return html`<${Dialog} title=${title} onClose=${onClose}>${state.error ? html`<${Note} tone="bad">${state.error}<//>` : html`<${Busy} />`}<//>`;
  const { chosen, sample } = state.data;
  return html`<${ActDialog} spec=${acts.find("dead.discard")} name="" act=${act} fields=${fields} verb=${`Discard ${plural(chosen, "record")}`} title=${title} onDone=${onDone} onClose=${onClose}>
    <${Table} caption=${`${Math.min(sample.length, 5)} of ${plural(chosen, "record")}`} showCaption rowHead heads=${["Place", "Why it was refused", { text: "Value", wide: true }]}
      rows=${sample.slice(0, 5).map((letter) => ({ key: letter.place, cells: [letter.place, letter.detail ?? letter.reason, html`<code class="value">${letter.value ?? ""}</code>`] }))} /><//>`;
}

function Late({ data }) {
  const pairs = [["Policy", data.policy ?? "–"], ["Late rows kept", number(data.kept)], data.debounce_s === null ? null : ["A window is due", `${duration(data.debounce_s)} after its last late row`], isMissing(data.horizon_s) ? null : ["Left as it is", `a window that ended more than ${duration(data.horizon_s)} before the watermark`], ["Now", data.text]];
  return html`<div><${Facts} pairs=${pairs} />
    ${data.policy === "correct" ? html`<${Table} caption="Windows that wait for their correction" rowHead empty="No window waits." heads=${["Window", "State", { text: "Late rows", num: true }, "First came", "Last came", "Due"]}
      rows=${data.windows.map((each) => ({ key: each.start, cells: [html`<${Instant} at=${each.start} seconds=${false} />`, html`<${Tag} word=${each.state} tone=${STATE_TONES[each.state]} />`, number(each.records), html`<${Ago} at=${each.first_at} />`, html`<${Ago} at=${each.last_at} />`, html`<${Instant} at=${each.due_at} />`] }))} />` : null}
    ${data.total > data.windows.length ? html`<p class="soft">${plural(data.total - data.windows.length, "further window")} not shown.</p>` : null}</div>`;
}
