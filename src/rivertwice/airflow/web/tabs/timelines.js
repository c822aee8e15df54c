// Timelines, savepoints with their race clock, and versions side by side.
import { html, useState } from "../vendor/preact-htm.js";
import { ActDialog, Direct, Started, useStarted } from "../acting.js";
import { Drawing, Legend, Race, WAYS } from "../drawing.js";
import { bytes, duration, number, plural } from "../format.js";
import { Ago, Card, Copyable, Empty, Instant, Loaded, Note, Table, Tag, Words } from "../parts.js";
import { useData } from "../poll.js";
import { Versions } from "../versions.js";

const SOME = 12;

export default function Tab({ name, summary, stamp, query, api, act, acts }) {
  const [started, onDone] = useStarted();
  const every = started.length ? 5000 : 120000; // the summary's stamp says when there is news; the race clock is measured without one
  const lines = useData(api("timelines"), stamp, { every }), points = useData(api("savepoints"), stamp, { every });
  const [chosen, setChosen] = useState(query.savepoint ?? null), [asked, setAsked] = useState(null);
  const switching = (summary.running ?? []).filter((run) => run.dag === `operate__${name}`).map((run) => `${run.run}:${run.state}`).join();
  const rows = points.data?.rows ?? [], spec = asked && acts.find(asked.act);
  return html`<div>
    <${Started} started=${started} />
    <${Operation} name=${name} operation=${points.data?.operation} acts=${acts} onAsk=${setAsked} />
    <${Card} title="Timelines" note="A fork begins a new timeline after a batch. The width of a gap grows with the logarithm of its batches." wide>
      <${Loaded} state=${lines}>${(drawn) => (drawn.head === null ? html`<${Empty}>The stream was never started, so there is no timeline yet.<//>` : html`<div>
        <${Drawing} drawing=${drawn} savepoints=${rows} chosen=${chosen} onChoose=${setChosen} /><${Legend} />
        <${Chosen} point=${rows.find((point) => point.id === chosen)} />
        <details><summary>The same as tables</summary><${LaneTable} drawn=${drawn} /><${MarkTable} drawn=${drawn} /></details></div>`)}<//>
    <//>
    <${Card} title="Savepoints" note=${points.data ? `${plural(points.data.total, "savepoint")}, ${points.data.proved} proved` : ""} wide
      actions=${html`${acts.find("savepoint.restore") ? html`<button type="button" title="Take a savepoint of the drained stream and continue from it; nothing is replayed" onClick=${() => setAsked({ act: "savepoint.restore", savepoint: "", planned: true })}>Planned restore…</button>` : null}<${Direct} spec=${acts.find("savepoint.take")} act=${act} onDone=${onDone} quiet=${false} /><${Direct} spec=${acts.find("rotate")} act=${act} onDone=${onDone} quiet=${false} />`}>
      <${Loaded} state=${points}>${(data) => html`<${Savepoints} data=${data} acts=${acts} act=${act} onDone=${onDone} onAsk=${setAsked} chosen=${chosen} />`}<//>
    <//>
    <${Versions} name=${name} api=${api} stamp=${`${stamp}:${switching}`} every=${switching || started.length ? 5000 : 120000} acts=${acts} act=${act} onDone=${onDone} />
    ${spec ? html`<${Operate} key=${`${asked.act}:${asked.savepoint}:${asked.planned}`} spec=${spec} asked=${asked} point=${rows.find((point) => point.id === asked.savepoint)} name=${name} api=${api} act=${act} onDone=${onDone} onClose=${() => setAsked(null)} />` : null}
  </div>`;
}

// The dialog of an act on a savepoint or on a timeline, with its preview.
function Operate({ spec, asked, point, name, api, act, onDone, onClose }) {
  const [unproved, setUnproved] = useState(false);
  const fields = { ...(asked.savepoint ? { savepoint: asked.savepoint } : {}), ...(asked.planned ? { planned: true } : {}), ...(unproved ? { unproved: true } : {}) };
  const title = asked.planned ? `${spec.title} from a savepoint taken now` : asked.savepoint ? `${spec.title} ${asked.savepoint}` : spec.title;
  const options = point && point.status !== "proved" ? html`<label class="tick-box"><input type="checkbox" checked=${unproved} onChange=${(event) => setUnproved(event.target.checked)} /> Accept it although it was never proved</label>` : null;
  return html`<${ActDialog} spec=${spec} name=${name} act=${act} fields=${fields} title=${title} options=${options} onDone=${onDone} onClose=${onClose}
    path=${spec.preview ? api(`${spec.preview}?${new URLSearchParams(fields)}`) : null} />`;
}

function Operation({ name, operation, acts, onAsk }) {
  if (!operation) return null;
  const again = operation.noun.includes("rewind") ? "savepoint.rewind" : "savepoint.restore";
  return html`<${Note} tone="warn"><b>${operation.id}</b>, a ${operation.noun} of ${operation.savepoint}, has come to “${operation.after}”; it began <${Ago} at=${operation.began} />.
    If no run works on it, it was cut off: finish it, or give it up.
    <div class="buttons start">${acts.find(again) ? html`<button type="button" onClick=${() => onAsk({ act: again, savepoint: "" })}>Finish it</button>` : html`<${Copyable} text=${operation.finish} />`}
    ${acts.find("operation.abandon") ? html`<button type="button" onClick=${() => onAsk({ act: "operation.abandon", savepoint: "" })}>Give it up</button>` : html`<${Copyable} text=${operation.abandon} />`}</div><//>`;
}

const LaneTable = ({ drawn }) => html`<${Table} caption="Timelines, in order of creation" showCaption rowHead heads=${["Timeline", "Began by", "Left", { text: "Batches", num: true }, { text: "Serves", wide: true }, "Created"]}
  rows=${drawn.lanes.map((lane) => ({ key: lane.timeline, cells: [lane.is_head ? html`<b>${lane.timeline}</b> (head)` : lane.timeline, WAYS[lane.way] ?? lane.way,
    lane.parent === null ? "–" : `${lane.parent} after batch ${lane.fork}`, lane.last === null ? "none yet" : `${lane.first} to ${lane.last}`,
    `${lane.text}${lane.changed.length ? `; another definition: ${lane.changed.join(", ")}` : ""}`, html`<${Instant} at=${lane.created_at} />`] }))} />
  ${drawn.left_out.timelines ? html`<p class="soft">${plural(drawn.left_out.timelines, "older timeline")} not shown.</p>` : null}`;

const MarkTable = ({ drawn }) => html`<${Table} caption="Head moves and publications, newest first" showCaption heads=${[{ text: "Number", num: true }, "When", "At", { text: "What", wide: true }]}
  rows=${[...drawn.marks].reverse().map((mark) => ({ key: mark.seq, cells: [mark.seq, html`<${Instant} at=${mark.at} />`, `batch ${mark.batch} of ${mark.timeline}`, mark.text] }))} />
  ${drawn.left_out.moves + drawn.left_out.publications ? html`<p class="soft">${plural(drawn.left_out.moves, "older head move")} and ${plural(drawn.left_out.publications, "older publication")} not shown.</p>` : null}`;

const Chosen = ({ point }) => html`<div role="status" class="chosen-point">${point ? html`<p><b>${point.id}</b>: ${point.status}${point.pinned ? ", pinned" : ""}, batch ${point.batch} of ${point.timeline}, taken <${Instant} at=${point.at} />. ${point.proof ? `Proved by ${point.proof.compared}.` : (point.attempt ?? "Not proved.")} ${point.race.deadline ? html`Until <${Instant} at=${point.race.deadline} />, ` : null}${point.race.text}.</p>` : null}</div>`;

const replayText = (replay) => (replay === null ? "not by a restore" : `${plural(replay.batches, "batch", "batches")}, ${plural(replay.records, "record")}, about ${duration(replay.seconds)}${replay.measured ? "" : " (not measured yet)"}`);

const Proof = ({ point }) => (point.proof
  ? html`<span><${Ago} at=${point.proof.at} /><br /><span class="soft">${point.proof.compared}${point.proof.source ? `, from ${point.proof.source}` : ""}</span></span>`
  : html`<span>${point.attempt ? html`<${Words} text=${point.attempt} />` : "none"}${point.to_prove ? html`<br /><span class="soft">${point.to_prove.text}</span>` : null}</span>`);

function Savepoints({ data, acts, act, onDone, onAsk, chosen }) {
  const [all, setAll] = useState(false);
  const rows = all ? data.rows : data.rows.slice(0, SOME);
  const ask = (point, verb, spec = acts.find(`savepoint.${verb}`)) => (spec ? html`<button type="button" class="quiet" title=${point.obstacles[verb] ?? spec.says} onClick=${() => onAsk({ act: spec.act, savepoint: point.id })}>${spec.title}…</button>` : null);
  return html`<div>
    <${Table} caption="Savepoints, newest first" rowHead heads=${["Savepoint", "Proof", "Restoring it replays", "Race clock", { text: "Size", num: true }, "Acts"]}
      empty="No savepoint was taken yet."
      rows=${rows.map((point) => ({ key: point.id, tone: point.id === chosen ? "calm" : null, cells: [
        html`<span class="mono">${point.id}</span><br /><span class="tags"><${Tag} word=${point.status} />${point.pinned ? html`<${Tag} word="pinned" tone="calm" />` : null}${point.on_path ? null : html`<${Tag} word="off the path" tone="none" />`}</span>
          <span class="soft">batch ${number(point.batch)} of ${point.timeline}, <${Ago} at=${point.at} />; ${point.reason}${point.kept && point.kept !== "pinned" ? `; kept: ${point.kept}` : ""}</span>`,
        html`<${Proof} point=${point} />`, replayText(point.replay), html`<${Race} race=${point.race} />`, bytes(point.bytes),
        html`<span class="act-list">${ask(point, "restore")}${ask(point, "rewind")}
          ${point.status === "proved" ? null : html`<${Direct} spec=${acts.find("savepoint.prove")} act=${act} fields=${{ savepoint: point.id }} onDone=${onDone} why=${point.obstacles.prove} />`}
          <${Direct} spec=${acts.find(point.pinned ? "savepoint.unpin" : "savepoint.pin")} act=${act} fields=${{ savepoint: point.id }} onDone=${onDone} /></span>`,
      ] }))} />
    ${data.rows.length > SOME ? html`<button type="button" class="quiet" onClick=${() => setAll(!all)}>${all ? "Show the newest alone" : `Show ${plural(data.rows.length - SOME, "older one")}`}</button>` : null}
    ${data.total > data.rows.length ? html`<p class="soft">${plural(data.total - data.rows.length, "still older one")}: <code>rivertwice savepoint list</code>.</p>` : null}
    ${Object.entries(data.damaged).map(([id, why]) => html`<${Note} key=${id} tone="bad">${id}: ${why}<//>`)}
  </div>`;
}
