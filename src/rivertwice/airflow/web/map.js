// The map: topics, pipelines, tables, sinks and waiting DAGs from left to right, with what waits on each way.
import { html, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { AirflowLink, Card, Empty, Icon, Light, Loaded, Table, pipelineHref } from "./parts.js";
import { useData } from "./poll.js";

const EVERY = 10_000, WIDTH = 216, HEIGHT = 62, ACROSS = 128, DOWN = 18, EDGE = 12;
const KINDS = { topic: "topic", asset: "Airflow's asset", pipeline: "pipeline", table: "table", sink: "sink", dag: "DAG" };

// Each part stands right of all that flow into it. A way that would close a circle moves nothing.
export function columnsOf({ nodes, edges }) {
  const into = new Map(nodes.map((node) => [node.id, []])), known = new Map();
  for (const edge of edges) into.get(edge.target)?.push(edge.source);
  function column(id, seen) {
    if (known.has(id)) return known.get(id);
    if (seen.has(id)) return 0;
    const found = Math.max(-1, ...into.get(id).filter((source) => into.has(source)).map((source) => column(source, new Set([...seen, id])))) + 1;
    if (!seen.size) known.set(id, found);
    return found;
  }
  for (const node of nodes) column(node.id, new Set());
  return known;
}

// Where each part stands: in its column, near the parts that flow into it.
export function placesOf(flow) {
  const columns = columnsOf(flow), places = new Map(), taken = [];
  const sources = new Map(flow.nodes.map((node) => [node.id, flow.edges.filter((edge) => edge.target === node.id).map((edge) => edge.source)]));
  for (let column = 0; column <= Math.max(0, ...columns.values()); column += 1) {
    const near = (node) => {
      const rows = sources.get(node.id).filter((id) => places.has(id)).map((id) => places.get(id).row);
      return rows.length ? rows.reduce((sum, row) => sum + row, 0) / rows.length : null;
    };
    const own = flow.nodes.filter((node) => columns.get(node.id) === column).map((node, order) => ({ node, order, wanted: near(node) }));
    own.sort((a, b) => (a.wanted ?? a.order) - (b.wanted ?? b.order) || a.order - b.order);
    taken[column] = -1;
    for (const { node, wanted } of own) {
      const row = Math.max(taken[column] + 1, Math.round(wanted ?? 0));
      taken[column] = row;
      places.set(node.id, { column, row, x: EDGE + column * (WIDTH + ACROSS), y: EDGE + row * (HEIGHT + DOWN) });
    }
  }
  return places;
}

// What flows into a part and out of it, however far.
export function around(flow, id) {
  const found = new Set([id]);
  for (const [from, to] of [["source", "target"], ["target", "source"]]) {
    const left = [id];
    for (let at = left.pop(); at !== undefined; at = left.pop()) {
      for (const edge of flow.edges) if (edge[from] === at && !found.has(edge[to])) { found.add(edge[to]); left.push(edge[to]); }
    }
  }
  return { nodes: flow.nodes.filter((node) => found.has(node.id)), edges: flow.edges.filter((edge) => found.has(edge.source) && found.has(edge.target)) };
}

function Part({ node, place, faint, onSee }) {
  const inner = html`<span class="soft map-kind">${KINDS[node.kind]}</span><b class="map-title">${node.title}</b>${node.word ? html`<${Light} tone=${node.tone} word=${node.word} />` : null}`;
  const shared = {
    class: `map-part map-${node.kind} t-${node.tone}${faint ? " faint" : ""}`, style: { left: `${place.x}px`, top: `${place.y}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` },
    "data-id": node.id, title: `${node.title}${node.word ? `: ${node.word}` : ""}`, onMouseEnter: () => onSee(node.id), onMouseLeave: () => onSee(null), onFocusIn: () => onSee(node.id), onFocusOut: () => onSee(null),
  };
  if (node.kind === "dag") return html`<div ...${shared}><${AirflowLink} dag=${node.title}>${inner}<//></div>`;
  return node.pipeline ? html`<a ...${shared} href=${pipelineHref(node.pipeline, node.tab)}>${inner}</a>` : html`<div ...${shared} tabindex="0">${inner}</div>`;
}

function Drawing({ flow }) {
  const box = useRef(null), [seen, setSeen] = useState(null);
  const places = useMemo(() => placesOf(flow), [flow]);
  const near = useMemo(() => (seen ? new Set(around(flow, seen).nodes.map((node) => node.id)) : null), [flow, seen]);
  const width = Math.max(...[...places.values()].map((place) => place.x)) + WIDTH + EDGE, height = Math.max(...[...places.values()].map((place) => place.y)) + HEIGHT + EDGE;
  const ordered = [...flow.nodes].sort((a, b) => places.get(a.id).column - places.get(b.id).column || places.get(a.id).row - places.get(b.id).row);
  const isFaint = (...ids) => near !== null && !ids.every((id) => near.has(id));
  function pressed(event) { // the nearest part in the direction of the arrow, first of those that a way leads to
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const own = event.target.closest("[data-id]")?.dataset.id, here = places.get(own);
    if (!step || !here) return;
    event.preventDefault();
    const isBeside = (id) => flow.edges.some((edge) => (edge.source === own && edge.target === id) || (edge.target === own && edge.source === id));
    const far = ([id, place]) => (isBeside(id) ? 0 : 1000) + Math.abs(place.column - here.column) + Math.abs(place.row - here.row) + (step[0] ? Math.abs(place.row - here.row) : 0);
    const ahead = [...places].filter(([, place]) => (step[0] ? (place.column - here.column) * step[0] > 0 : place.column === here.column && (place.row - here.row) * step[1] > 0));
    const [next] = ahead.sort((a, b) => far(a) - far(b))[0] ?? [];
    const found = next && box.current.querySelector(`[data-id="${CSS.escape(next)}"]`);
    if (found) (found.matches("a, [tabindex]") ? found : found.querySelector("a")).focus();
  }
  return html`<div class="map-scroll" role="region" aria-label="Map of the flow" tabindex="0"><div class="map" ref=${box} style=${{ width: `${width}px`, height: `${height}px` }} onKeyDown=${pressed}>
    <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true">${flow.edges.filter((edge) => places.has(edge.source) && places.has(edge.target)).map((edge) => {
      const from = places.get(edge.source), to = places.get(edge.target), x = from.x + WIDTH, y = from.y + HEIGHT / 2, bend = (to.x - x) / 2;
      return html`<path key=${`${edge.source} ${edge.target}`} class=${`map-way t-${edge.tone}${isFaint(edge.source, edge.target) ? " faint" : ""}`} d="M${x} ${y}C${x + bend} ${y} ${to.x - bend} ${to.y + HEIGHT / 2} ${to.x} ${to.y + HEIGHT / 2}" />`;
    })}</svg>
    ${flow.edges.filter((edge) => edge.text && places.has(edge.source) && places.has(edge.target)).map((edge) => {
      const from = places.get(edge.source), to = places.get(edge.target);
      return html`<span key=${`${edge.source} ${edge.target}`} class=${`map-text t-${edge.tone}${isFaint(edge.source, edge.target) ? " faint" : ""}`} style=${{ left: `${to.x - ACROSS / 2}px`, top: `${(from.column + 1 === to.column ? (from.y + to.y) / 2 : to.y) + HEIGHT / 2}px`, maxWidth: `${ACROSS - 16}px` }}>${edge.text.replace(/(\d)-(?=\d)/g, "$1\u2011")}</span>`;
    })}
    ${ordered.map((node) => html`<${Part} key=${node.id} node=${node} place=${places.get(node.id)} faint=${isFaint(node.id)} onSee=${setSeen} />`)}
  </div></div>`;
}

function AsTable({ flow }) {
  const titles = new Map(flow.nodes.map((node) => [node.id, node]));
  const named = (id) => { const node = titles.get(id); return html`<span>${node.title} <span class="soft">${KINDS[node.kind]}</span></span>`; };
  return html`<${Table} stack caption="What flows where" heads=${["From", "To", "On the way", "State there"]} rowHead=${1}
    rows=${flow.edges.filter((edge) => titles.has(edge.source) && titles.has(edge.target)).map((edge) => ({ key: `${edge.source} ${edge.target}`, cells: [named(edge.source), named(edge.target), edge.text ? html`<span><${Icon} tone=${edge.tone} /> ${edge.text}</span>` : "–", titles.get(edge.target).word ? html`<${Light} tone=${titles.get(edge.target).tone} word=${titles.get(edge.target).word} />` : "–"] }))} />`;
}

// of: the pipeline whose surroundings are shown; all pipelines without it. `keeps`: which pipelines, by name.
export function FlowMap({ of = null, keeps = null, stamp = "" }) {
  const state = useData("api/map", stamp, { every: EVERY }), [asTable, setAsTable] = useState(() => innerWidth < 700); // a phone shows one part of the drawing at a time
  const shown = (flow) => {
    if (of !== null) return around(flow, `pipeline:${of}`);
    if (keeps === null) return flow;
    const ids = new Set(flow.nodes.filter((node) => node.kind === "pipeline" && keeps.has(node.title.split("@")[0])).flatMap((node) => around(flow, node.id).nodes.map((each) => each.id)));
    return { nodes: flow.nodes.filter((node) => ids.has(node.id)), edges: flow.edges.filter((edge) => ids.has(edge.source) && ids.has(edge.target)) };
  };
  return html`<${Card} title="Map" note="what flows from left to right, and what waits on the way" actions=${html`<button type="button" class="quiet" aria-pressed=${asTable} onClick=${() => setAsTable(!asTable)}>${asTable ? "As a drawing" : "As a table"}</button>`}>
    <${Loaded} state=${state}>${(data) => {
      const flow = shown(data);
      if (!flow.nodes.length) return html`<${Empty}>There is no pipeline to draw.<//>`;
      return asTable ? html`<${AsTable} flow=${flow} />` : html`<${Drawing} flow=${flow} />`;
    }}<//><//>`;
}
