// The drawing of a pipeline's timelines: a lane each, forks, the head in strong, savepoints, head moves and publications.
import { html, useCallback, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { Icon, Instant } from "./parts.js";
import { duration, instant } from "./format.js";
import { useClock } from "./poll.js";

const LEAST = 760, LEFT = 118, RIGHT = 36, TOP = 34, LANE = 58, TICK = 64;

// The horizontal place of a batch; between two batches of the scale it is linear.
export function placeOf(scale, batch) {
  if (!scale.length) return 0;
  let [before, at] = scale[0];
  if (batch <= before) return at;
  for (const [next, place] of scale) {
    if (batch <= next) return next === before ? place : at + ((place - at) * (batch - before)) / (next - before);
    [before, at] = [next, place];
  }
  return at;
}

const xOf = (scale, width, batch) => LEFT + placeOf(scale, batch) * (width - LEFT - RIGHT);

function ticksOf(scale, width) {
  const ticks = [];
  for (const [batch] of scale) {
    const x = xOf(scale, width, batch);
    if (!ticks.length || x - ticks[ticks.length - 1].x >= TICK) ticks.push({ batch, x });
  }
  return ticks;
}

function Lane({ lane, y, x, parentY }) {
  const last = lane.last ?? lane.first;
  const from = x(lane.first), to = Math.max(x(last), from + 6);
  const served = lane.serves ? [x(lane.serves[0]), Math.max(x(lane.serves[1]), x(lane.serves[0]) + 6)] : null;
  const kind = lane.is_head ? "head" : lane.serves ? "served" : "off";
  return html`<g class="lane ${kind}">
    ${parentY === null ? null : html`<path class="fork" d=${`M${x(lane.fork)} ${parentY}C${x(lane.fork) + 18} ${parentY} ${from - 18} ${y} ${from} ${y}`} />`}
    ${lane.last === null ? html`<circle class="none-yet" cx=${from} cy=${y} r="5" />` : html`<path class="gone" d=${`M${from} ${y}H${to}`} />`}
    ${served ? html`<path class="line" d=${`M${served[0]} ${y}H${served[1]}`} />` : null}
    ${lane.is_head ? html`<path class="arrow" d=${`M${to + 3} ${y - 6}l9 6-9 6z`} />` : null}
    <text class="lane-name" x="8" y=${y - 2}>${lane.timeline}${lane.is_head ? " · head" : ""}</text>
    <text class="lane-way" x="8" y=${y + 14}>${WAYS[lane.way] ?? lane.way}</text>
  </g>`;
}

export const WAYS = { start: "first start", restore: "restore", upgrade: "upgrade", rewind: "rewind", gap: "past a gap", other: "never served" };

// Marks above a lane: a triangle for a head move, a square for a publication.
function Mark({ mark, x, y }) {
  const shape = mark.kind === "head" ? `M${x} ${y - 12}l-6-9h12z` : `M${x - 4.5} ${y - 21}h9v9h-9z`;
  return html`<g class="mark ${mark.kind}"><title>${`${instant(mark.at)}: ${mark.text}`}</title><path d=${shape} /></g>`;
}

const RACE_TONES = { lost: "bad", soon: "warn", until: "calm", kept: "good", unknown: "none" };
export const raceTone = (word) => RACE_TONES[word] ?? "none";

// A savepoint on its lane: filled with a tick if it is proved, a ring if it was only taken, crossed out if it cannot be restored.
function Dot({ point, x, y, chosen, onChoose }) {
  const proved = point.status === "proved", lost = point.race.word === "lost";
  const until = point.race.deadline ? `until ${instant(point.race.deadline)}, ` : "";
  const label = `Savepoint ${point.id}, ${point.status}${point.pinned ? ", pinned" : ""}, batch ${point.batch} of ${point.timeline}; ${until}${point.race.text}`;
  const press = (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); onChoose(point.id); }
  };
  return html`<g class="dot ${proved ? "proved" : "taken"} ${lost ? "lost" : ""} ${chosen ? "chosen" : ""}" role="button" tabindex="0" aria-label=${label} aria-pressed=${chosen ? "true" : "false"} onClick=${() => onChoose(point.id)} onKeyDown=${press}>
    <title>${label}</title>
    <circle class="halo" cx=${x} cy=${y} r="12" /><circle class="disc" cx=${x} cy=${y} r="7" />
    ${lost ? html`<path class="cut" d=${`M${x - 3} ${y - 3}l6 6m0-6l-6 6`} />` : proved ? html`<path class="cut" d=${`M${x - 3.4} ${y + 0.2}l2.6 2.6 4.4-5`} />` : null}
    ${point.pinned ? html`<path class="pin" d=${`M${x - 3.5} ${y + 10}h7l-3.5 6z`} />` : null}
  </g>`;
}

// Dots that would lie on each other are moved apart, newest to the right.
function spread(points, x) {
  const placed = [];
  for (const point of [...points].sort((one, other) => one.batch - other.batch || one.at.localeCompare(other.at))) {
    const before = placed.filter((each) => each.point.timeline === point.timeline).pop();
    placed.push({ point, x: Math.max(x(point.batch), before ? before.x + 17 : 0) });
  }
  return placed;
}

export function Drawing({ drawing, savepoints, chosen, onChoose }) {
  const box = useRef(null), [room, setRoom] = useState(LEAST);
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setRoom(Math.max(LEAST, Math.floor(entry.contentRect.width))));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  const rows = new Map(drawing.lanes.map((lane, index) => [lane.timeline, TOP + LANE * index + LANE / 2]));
  const x = (batch) => xOf(drawing.scale, room, batch);
  const height = TOP + LANE * drawing.lanes.length + 34;
  const dots = spread(savepoints.filter((point) => rows.has(point.timeline)), x);
  const width = Math.max(room, ...dots.map((dot) => dot.x + RIGHT));
  const words = `Timelines: ${drawing.lanes.map((lane) => `${lane.timeline}${lane.is_head ? ", the head," : ""} ${lane.text}`).join("; ")}`;
  return html`<div class="scroll timelines-box" tabindex="0" role="region" aria-label="Drawing of the timelines" ref=${box}>
    <svg class="timelines" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="group" aria-label=${words}>
      ${ticksOf(drawing.scale, room).map((tick) => html`<g class="tick" key=${tick.batch}><path d=${`M${tick.x} ${TOP - 8}V${height - 30}`} /><text x=${tick.x} y=${height - 12}>${tick.batch}</text></g>`)}
      <text class="axis" x="8" y=${height - 12}>batch</text>
      ${drawing.lanes.map((lane) => html`<${Lane} key=${lane.timeline} lane=${lane} y=${rows.get(lane.timeline)} x=${x} parentY=${lane.parent && rows.has(lane.parent) ? rows.get(lane.parent) : null} />`)}
      ${drawing.marks.filter((mark) => rows.has(mark.timeline)).map((mark) => html`<${Mark} key=${mark.seq} mark=${mark} x=${x(mark.batch)} y=${rows.get(mark.timeline)} />`)}
      ${dots.map((dot) => html`<${Dot} key=${dot.point.id} point=${dot.point} x=${dot.x} y=${rows.get(dot.point.timeline)} chosen=${dot.point.id === chosen} onChoose=${onChoose} />`)}
    </svg></div>`;
}

const RACE_WORDS = { lost: "lost", soon: "soon", until: "racing", kept: "safe", unknown: "not measured" };
// Until when a savepoint can be restored; the time that is left counts down.
export function Race({ race }) {
  const left = useCallback((now) => {
    if (!race.deadline) return "";
    const seconds = (Date.parse(race.deadline) - now) / 1000;
    return seconds > 0 ? `${duration(seconds)} left` : "may be gone";
  }, [race.deadline]);
  const shown = useClock(left), tone = shown === "may be gone" ? "bad" : raceTone(race.word);
  return html`<span><span class="light t-${tone}"><${Icon} tone=${tone} /><span>${RACE_WORDS[race.word] ?? race.word}${shown ? `, ${shown}` : ""}</span></span><br /><span class="soft">${race.deadline ? html`Until <${Instant} at=${race.deadline} />, ` : null}${race.text}</span></span>`;
}

export const Legend = () => html`<ul class="legend">
  <li><svg viewBox="0 0 26 12" aria-hidden="true"><path class="k-head" d="M1 6h24" /></svg>serves, the head</li>
  <li><svg viewBox="0 0 26 12" aria-hidden="true"><path class="k-served" d="M1 6h24" /></svg>serves, before the fork</li>
  <li><svg viewBox="0 0 26 12" aria-hidden="true"><path class="k-gone" d="M1 6h24" /></svg>counts no more</li>
  <li><${Icon} tone="good" />savepoint, proved</li>
  <li><svg viewBox="0 0 14 14" aria-hidden="true"><circle class="k-taken" cx="7" cy="7" r="5" /></svg>savepoint, taken</li>
  <li><svg viewBox="0 0 14 14" aria-hidden="true"><path class="k-mark" d="M7 12L2 3h10z" /></svg>the head moved</li>
  <li><svg viewBox="0 0 14 14" aria-hidden="true"><path class="k-mark" d="M2.5 2.5h9v9h-9z" /></svg>a backfill was published</li>
</ul>`;
