// Logs: the end of a log, searched and followed. Lines are text.
import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { bytes, plural } from "../format.js";
import { Copyable, Empty, Loaded, Note } from "../parts.js";
import { get, useData } from "../poll.js";

const LOGS = { driver: "Driver", agent: "Agent", savepoints: "Savepoints", restore: "Restore", rewind: "Rewind", "catch-up": "Catch-up", fast: "Fast path" };
const LEVELS = { all: "All", warning: "Warnings and errors", error: "Errors" };
const EVERY = 2000, MOST = 3000;
const OPTION = { driver: "", agent: "--agent" };

function useFollowed(api, asked, first, on) { // lines after those of `first`, while `on`
  const [more, setMore] = useState({ of: null, lines: [], end: null, again: false, error: null });
  const end = useRef(null);
  useEffect(() => {
    end.current = first ? first.end : null;
    setMore({ of: first, lines: [], again: false, error: null });
    if (!on || !first) return undefined;
    let live = true, timer = 0;
    async function ask() {
      if (!document.hidden) {
        try {
          const data = await get(api(`logs?${asked}&after=${encodeURIComponent(end.current)}`), { keep: false });
          if (!live) return;
          end.current = data.end;
          if (data.lines.length || data.again) setMore((before) => ({ of: first, lines: data.again ? data.lines : [...before.lines, ...data.lines].slice(-MOST), searched: (before.searched ?? 0) + data.searched, again: before.again || data.again, error: null }));
        } catch (error) {
          if (live) setMore((before) => ({ ...before, error: error.message }));
        }
      }
      if (live) timer = setTimeout(ask, EVERY);
    }
    timer = setTimeout(ask, EVERY);
    return () => { live = false; clearTimeout(timer); };
  }, [asked, first, on]);
  return more.of === first ? more : { lines: [], again: false, error: null };
}

function SparkUi({ data }) {
  if (data.ui) return html`<p><a href=${data.ui} target="_blank" rel="noreferrer">Spark UI of the running driver</a> <span class="soft">It listens on ${new URL(data.ui).host}, so it opens on that host alone.</span></p>`;
  return html`<p class="soft">${data.ui_on ? "No driver with a Spark UI runs now." : html`The Spark UI is off. <code>RIVERTWICE_SPARK_UI=on</code> in the agent's environment turns it on for drivers that start after it.`}</p>`;
}

function Lines({ lines, tail, more }) {
  const box = useRef(null), atEnd = useRef(true);
  useEffect(() => { if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight; }, [lines, more]);
  const scrolled = () => { const own = box.current; atEnd.current = own.scrollHeight - own.scrollTop - own.clientHeight < 24; };
  const shown = more.again ? more.lines : [...lines, ...more.lines];
  if (!shown.length) return html`<${Empty}>${tail}<//>`;
  return html`<div class="log mono" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label="Lines of the log" aria-live="off">${shown.map((line, place) => html`<div key=${place} class=${line.level ? `log-line t-${line.level === "error" ? "bad" : "warn"}` : "log-line"}>${line.level ? html`<span class="unseen">${line.level}: </span>` : null}${line.text}</div>`)}</div>`;
}

export default function Tab({ name, api, query, setQuery }) {
  const of = query.of in LOGS ? query.of : "driver", level = query.level in LEVELS ? query.level : "all";
  const [typed, setTyped] = useState(query.q ?? ""), [follow, setFollow] = useState(true);
  useEffect(() => { // asked for once typing pauses
    const timer = setTimeout(() => { if (typed !== (query.q ?? "")) setQuery({ ...query, q: typed }); }, 350);
    return () => clearTimeout(timer);
  }, [typed]);
  const asked = new URLSearchParams({ of, level, q: query.q ?? "" }).toString();
  const state = useData(api(`logs?${asked}`), "");
  const more = useFollowed(api, asked, state.data, follow);
  const change = (part) => setQuery({ ...query, ...part });
  return html`<div>
    <div class="tools" role="search">
      <label class="field"><span>Log</span><select value=${of} onChange=${(event) => change({ of: event.target.value })}>${Object.entries(LOGS).map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}</select></label>
      <label class="field"><span>Level</span><select value=${level} onChange=${(event) => change({ level: event.target.value === "all" ? "" : event.target.value })}>${Object.entries(LEVELS).map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}</select></label>
      <label class="field search"><span>Search</span><input type="search" value=${typed} maxlength="200" onInput=${(event) => setTyped(event.target.value)} placeholder="Text in a line" /></label>
      <label class="tick"><input type="checkbox" checked=${follow} onChange=${(event) => setFollow(event.target.checked)} /> Follow</label>
    </div>
    <${Loaded} state=${state}>${(data) => html`<div>
      ${more.error ? html`<${Note} tone="warn">${more.error} The lines below stay; it is asked again.<//>` : null}
      ${of === "agent" && !data.whole ? html`<${Note} tone="calm">You see the lines about ${name}. The whole log is for users who may read every pipeline of this home.<//>` : null}
      ${of === "driver" ? html`<${SparkUi} data=${data} />` : null}
      <p class="soft">${data.missing ? "There is no such log yet." : `${plural(data.lines.length + more.lines.length, "line")} of ${plural(data.searched + (more.searched ?? 0), "line")} looked at${data.left_out ? `; ${plural(data.left_out, "earlier line")} that fit are left out` : ""}${data.cut ? `; the oldest ${bytes(data.cut)} of the log are not looked at` : ""}. All of it:`} ${data.missing ? null : html`<${Copyable} text=${`rivertwice logs ${of === "agent" ? "--agent" : `${name}${OPTION[of] === "" ? "" : ` --of ${of}`}`} --lines 100000`} />`}</p>
      ${more.again ? html`<${Note} tone="calm">The log was rotated meanwhile: these are its newest lines.<//>` : null}
      <${Lines} lines=${data.lines} more=${more} tail=${data.missing ? "Nothing has written it." : "No line fits."} />
    </div>`}<//>
  </div>`;
}
