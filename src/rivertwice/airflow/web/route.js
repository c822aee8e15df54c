// Where we are: `#/` is the overview, `#/p/NAME/TAB?query` a tab of a pipeline.
import { useEffect, useState } from "./vendor/preact-htm.js";

export const TABS = [
  ["now", "Now"],
  ["map", "Map"],
  ["health", "Health"],
  ["correctness", "Correctness"],
  ["timelines", "Timelines"],
  ["rows", "Rows"],
  ["backfills", "Backfills"],
  ["letters", "Dead letters, late"],
  ["alerts", "Alerts"],
  ["results", "Sinks, suites"],
  ["definition", "Definition"],
  ["logs", "Logs"],
];
const KEYS = TABS.map(([key]) => key);
const TAB_OF_VERB = {
  care: "now", reconcile: "correctness", backfill: "backfills", operate: "timelines",
};

export function parse(hash) {
  const [path, asked = ""] = hash.replace(/^#/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(asked));
  const [kind, name, tab] = path.split("/").filter(Boolean);
  if (kind !== "p" || !name) return { page: "overview", query };
  return { page: "pipeline", name: decode(name), tab: KEYS.includes(tab) ? tab : "now", query };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function hashOf({ page, name, tab, query = {} }) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();
  const path = page === "pipeline" ? `/p/${encodeURIComponent(name)}${tab && tab !== "now" ? `/${tab}` : ""}` : "/";
  return `#${path}${asked ? `?${asked}` : ""}`;
}

// The pipeline of a DAG: `reconcile__flight_delays.v2` belongs to flight_delays@v2; null, if it is none of ours.
export function ofDag(dag) {
  const found = /^([a-z_]+?)__(.+)$/.exec(dag);
  if (!found || !(found[1] in TAB_OF_VERB)) return null;
  return { verb: found[1], name: found[2].replace(/\.(v\d+)$/, "@$1"), tab: TAB_OF_VERB[found[1]] };
}

// Links from Airflow: `?pipeline=X&run=Y` (a stored run), `?dag=D&run=R` (a view beside a DAG or a DAG run).
export function fromSearch(search) {
  const asked = new URLSearchParams(search);
  const pipeline = asked.get("pipeline"), dag = asked.get("dag"), run = asked.get("run");
  if (pipeline) return { page: "pipeline", name: pipeline, tab: "now", query: run ? { report: run } : {} };
  if (!dag) return null;
  const ours = ofDag(dag);
  if (!ours) return { page: "overview", query: { dag } };
  return { page: "pipeline", name: ours.name, tab: ours.tab, query: run ? { dag, run } : {} };
}

export function useRoute() {
  const [route, setRoute] = useState(() => {
    const asked = fromSearch(location.search);
    if (!asked) return parse(location.hash);
    history.replaceState(null, "", location.pathname + (location.hash.length > 2 ? location.hash : hashOf(asked)));
    return parse(location.hash);
  });
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    window.addEventListener("hashchange", changed);
    window.addEventListener("popstate", changed);
    return () => {
      window.removeEventListener("hashchange", changed);
      window.removeEventListener("popstate", changed);
    };
  }, []);
  function go(next, { push = true } = {}) {
    const hash = hashOf(next);
    if (hash === location.hash) return;
    history[push ? "pushState" : "replaceState"](null, "", hash);
    setRoute(parse(hash));
  }
  return [route, go];
}
