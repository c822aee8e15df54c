// The pieces all tabs are made of. Values are text; nothing here takes HTML.
import { html, useCallback, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { duration, instant, isMissing, pieces } from "./format.js";
import { useClock } from "./poll.js";

const TONES = {
  AGREES: "good", LATE: "warn", OPEN: "calm", NOT_COMPARABLE: "none", DEFECT: "bad",
  running: "good", idle: "good", starting: "calm", draining: "calm", hibernating: "calm", scheduled: "calm", queued: "calm", stopped: "none", failed: "bad", down: "none",
  unresponsive: "bad", restoring: "warn", given_up: "bad", serves: "good", passed: "good", refused: "bad", proved: "good",
  taken: "calm", critical: "bad", warning: "warn", resolved: "good", success: "good", queued: "calm", stale: "warn",
  acknowledged: "calm", open: "warn",
};
export const toneOf = (word) => TONES[word] || "none";

const SHAPES = { // each tone has its own shape, so that it is read without its colour
  good: html`<circle cx="8" cy="8" r="7" /><path class="cut" d="M4.5 8.2 7 10.6 11.5 5.6" />`,
  warn: html`<path d="M8 .8 15.6 14.6H.4z" /><path class="cut" d="M8 5.6v4.2M8 12v.6" />`,
  bad: html`<path d="M5 .9h6L15.1 5v6L11 15.1H5L.9 11V5z" /><path class="cut" d="M5.3 5.3l5.4 5.4M10.7 5.3l-5.4 5.4" />`,
  calm: html`<circle cx="8" cy="8" r="7" /><path class="cut" d="M8 4.2V8l2.6 1.8" />`,
  none: html`<circle cx="8" cy="8" r="6.2" class="ring" /><path class="dash" d="M5 8h6" />`,
};
export const Icon = ({ tone }) => html`<svg class="icon t-${tone}" viewBox="0 0 16 16" aria-hidden="true" focusable="false">${SHAPES[tone] || SHAPES.none}</svg>`;

// A light: shape, colour and word.
export const Light = ({ tone = "none", word, title }) => html`<span class="light t-${tone}" title=${title}><${Icon} tone=${tone} /><span>${word}</span></span>`;
export const Tag = ({ word, tone }) => html`<span class="tag t-${tone || toneOf(word)}">${word}</span>`;

// An instant, and its age by the server's clock. `toS`: the instant is given to this number of seconds, so a smaller age means nothing.
export function Ago({ at, before = "", after = " ago", toS = 0 }) {
  const text = useCallback((now) => {
    const age = isMissing(at) ? 0 : (now - Date.parse(at)) / 1000;
    return isMissing(at) ? "never" : toS && age < 2 * toS ? "just now" : `${before}${duration(Math.max(0, age))}${after}`;
  }, [at, before, after, toS]);
  const shown = useClock(text);
  return isMissing(at) ? html`<span class="soft">never</span>` : html`<time datetime=${at} title=${instant(at)}>${shown}</time>`;
}
export const Instant = ({ at, seconds = true }) => (isMissing(at) ? html`<span class="soft">–</span>` : html`<time datetime=${at}>${instant(at, { seconds })}</time>`);

// `why`: why the fact is older than it should be; null if it is not. `short`: the reason is read out and on the pointer alone.
export const Stale = ({ why, short = false }) => (why ? html` <span class="stale" title=${short ? why : null}><span class="tag t-warn">stale</span> <span class=${short ? "unseen" : "soft"}>${why}</span></span>` : null);

const root = () => new URL("../", document.baseURI.split("#")[0].split("?")[0]);
// To a page of Airflow; it opens in the whole window, also out of the frame.
export function AirflowLink({ dag, run, task, children }) {
  let path = `dags/${encodeURIComponent(dag)}`;
  if (run) path += `/runs/${encodeURIComponent(run)}`;
  if (run && task) path += `/tasks/${encodeURIComponent(task)}`;
  return html`<a href=${new URL(path, root()).href} target="_top">${children || (run ? run : dag)}</a>`;
}
export const airflowRoot = root;
export const pipelineHref = (name, tab = "", query = {}) => {
  const asked = new URLSearchParams(query).toString();
  return `#/p/${encodeURIComponent(name)}${tab ? `/${tab}` : ""}${asked ? `?${asked}` : ""}`;
};

// A runbook: an address is a link, a path of the project is text.
export const Runbook = ({ text }) => (/^https?:/.test(text) ? html`<a href=${text} target="_blank" rel="noreferrer">${text}</a>` : html`<code>${text}</code>`);

// Plain text in which `commands` stand in backticks.
const INSTANT = /(\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)? UTC)/; // it is kept on one line
export const Words = ({ text }) => html`<span>${pieces(text).map((part) => (part.code ? html`<code>${part.text}</code>` : part.text.split(INSTANT).map((each, place) => (place % 2 ? html`<span class="whole">${each}</span>` : each))))}</span>`;

// heads: text or { text, num, mono, wide, hidden, sub: a line below it }; rows: arrays of cells, or { key, cells, tone }. `rowHead`: the number of the cell
// that names its row, true for the first. `stack`: on a phone each row is a block of lines, without sideways scrolling.
export function Table({ caption, heads, rows, rowHead = false, showCaption = false, stack = false, empty = "None.", className = "" }) {
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  const named = rowHead === true ? 0 : rowHead;
  const columns = heads.map((head) => (typeof head === "string" ? { text: head } : head));
  const kind = (column) => [column.num && "num", column.mono && "mono", column.wide && "wide"].filter(Boolean).join(" ") || null;
  const role = (name) => (stack ? name : undefined); // blocks lose the roles that a table has of itself
  const table = html`<table role=${role("table")} class=${`${stack ? "stacked" : ""} ${className}`}>
    <caption class=${showCaption ? "" : "unseen"}>${caption}</caption>
    <thead role=${role("rowgroup")}><tr role=${role("row")}>${columns.map((column) => html`<th scope="col" role=${role("columnheader")} class=${kind(column)}>${column.hidden ? html`<span class="unseen">${column.text}</span>` : column.text}${column.sub ? html`<span class="soft sub">${column.sub}</span>` : null}</th>`)}</tr></thead>
    <tbody role=${role("rowgroup")}>${rows.map((row, number) => {
      const cells = Array.isArray(row) ? row : row.cells;
      return html`<tr key=${row.key ?? number} role=${role("row")} class=${row.tone ? `row-${row.tone}` : null}>${cells.map((cell, index) => (index === named
        ? html`<th scope="row" role=${role("rowheader")} class=${kind(columns[index])}><div>${cell}</div></th>`
        : html`<td role=${role("cell")} class=${kind(columns[index])} data-label=${columns[index].hidden ? null : columns[index].text}><div>${cell}</div></td>`))}</tr>`;
    })}</tbody></table>`;
  return stack ? table : html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>${table}</div>`;
}

export const Card = ({ title, note, wide, actions, children }) => html`<section class="card ${wide ? "wide-card" : ""}">
  <div class="card-head"><h2>${title}</h2>${note ? html`<span class="soft">${note}</span>` : null}${actions ? html`<span class="actions">${actions}</span>` : null}</div>${children}</section>`;
// pairs: [name, value] each
export const Facts = ({ pairs }) => html`<dl class="facts">${pairs.filter(Boolean).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${isMissing(value) ? "–" : value}</dd></div>`)}</dl>`;
export const Note = ({ tone = "warn", children }) => html`<div class="note t-${tone}"><${Icon} tone=${tone} /><div>${children}</div></div>`;
export const Empty = ({ children }) => html`<p class="soft empty">${children}</p>`;
export const Busy = ({ children = "Reading…" }) => html`<p class="soft busy"><span class="spinner" aria-hidden="true"></span>${children}</p>`;

// What useData gives, shown: the last data stay when a request fails.
export function Loaded({ state, children }) {
  if (state.data === null) return state.error ? html`<${Note} tone="bad">${state.error}<//>` : html`<${Busy} />`;
  return html`<div>${state.error ? html`<${Note} tone="warn">${state.error} What you see is from ${instant(state.at)}.<//>` : null}${children(state.data)}</div>`;
}

// Values oldest first, null where nothing is known. The label says in words what the line shows.
export function Sparkline({ points, label, width = 120, height = 28 }) {
  const known = points.filter((value) => !isMissing(value));
  if (known.length < 2) return html`<div class="soft">${known.length ? "one sample" : "no samples"}</div>`;
  const top = Math.max(...known) || 1, step = width / (points.length - 1);
  let path = "", pen = false;
  points.forEach((value, index) => {
    if (isMissing(value)) { pen = false; return; }
    path += `${pen ? "L" : "M"}${(index * step).toFixed(1)} ${(height - 2 - (height - 4) * (value / top)).toFixed(1)}`;
    pen = true;
  });
  return html`<svg class="spark" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img" aria-label=${label} preserveAspectRatio="none"><path class="base" d="M0 ${height - 1.5}H${width}" /><path class="line" d=${path} /></svg>`;
}

// parts: { word, count, tone }; a list for who cannot see it.
export function Bar({ parts, label }) {
  const shown = parts.filter((part) => part.count), total = shown.reduce((sum, part) => sum + part.count, 0) || 1;
  const words = shown.map((part) => `${part.word} ${part.count}`).join(", ");
  return html`<span class="bar" role="img" aria-label=${`${label ? `${label}: ` : ""}${words || "nothing"}`} title=${words}>${shown.map((part) => html`<i key=${part.word} class="fill-${part.tone || toneOf(part.word)}" style=${{ width: `${(100 * part.count) / total}%` }} />`)}</span>`;
}
export const Progress = ({ done, total, label }) => (isMissing(total) || !total ? null : html`<progress value=${done} max=${total} aria-label=${label}>${done} of ${total}</progress>`);

export function Copyable({ text }) {
  const [done, setDone] = useState("");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setDone("copied");
    } catch {
      setDone("select the text and copy it");
    }
    setTimeout(() => setDone(""), 2500);
  }
  return html`<span class="copyable"><code>${text}</code><button type="button" class="quiet" onClick=${copy} aria-label=${`Copy ${text}`}>Copy</button><span class="soft" role="status">${done}</span></span>`;
}

// A dialog of the browser itself: it keeps the focus inside, closes on Escape and gives the focus back.
let dialogs = 0; // so that each has its own name: one may be open over another
export function Dialog({ title, onClose, children, wide = false }) {
  const ref = useRef(null), [id] = useState(() => `dialog-title-${dialogs += 1}`);
  useEffect(() => {
    const box = ref.current, opener = document.activeElement;
    if (!box.open) box.showModal();
    return () => {
      if (box.open) box.close();
      if (opener && opener.focus && opener.isConnected) opener.focus();
    };
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide-dialog" : ""} aria-labelledby=${id} onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <div class="dialog-head"><h2 id=${id}>${title}</h2><button type="button" class="quiet" onClick=${onClose} aria-label="Close">✕</button></div>
    <div class="dialog-body">${children}</div></dialog>`;
}

// An act that changes what is served: a preview (children), the pipeline's name typed, a reason, then `onConfirm({ confirm, reason })`.
export function Confirm({ title, name, verb, onConfirm, onClose, typed = true, children }) {
  const [confirm, setConfirm] = useState(""), [reason, setReason] = useState(""), [busy, setBusy] = useState(false), [error, setError] = useState(null);
  const ready = !busy && reason.trim() && (!typed || confirm === name);
  async function submit(event) {
    event.preventDefault();
    if (!ready) return;
    setBusy(true);
    setError(null);
    try {
      await onConfirm({ confirm, reason: reason.trim() });
    } catch (failure) {
      setError(failure.message);
      setBusy(false);
    }
  }
  return html`<${Dialog} title=${title} onClose=${onClose}>
    ${children}
    <form onSubmit=${submit}>
      <label class="field"><span>Reason, for the log</span><input name="reason" value=${reason} onInput=${(event) => setReason(event.target.value)} required maxlength="200" autocomplete="off" /></label>
      ${typed ? html`<label class="field"><span>Type <code>${name}</code> to confirm</span><input name="confirm" value=${confirm} onInput=${(event) => setConfirm(event.target.value)} autocomplete="off" spellcheck=${false} /></label>` : null}
      ${error ? html`<div role="alert"><${Note} tone="bad">${error}<//></div>` : null}
      <div class="buttons"><button type="button" onClick=${onClose}>Cancel</button><button type="submit" class="primary" disabled=${!ready}>${busy ? "Starting…" : verb}</button></div>
    </form><//>`;
}
