// On Airflow's home page: what is worst of all pipelines, in one sentence. Airflow loads this module and draws the function it
// finds in `globalThis.AirflowPlugin` with its own React and Chakra, so it looks as Airflow does, light or dark.
const EVERY = 30_000;
const ORDER = ["bad", "warn", "calm", "none", "good"];
const COLOURS = { bad: "red", warn: "orange", calm: "blue", none: "gray", good: "green" };

function worstOf(rows) {
  const rank = (row) => (row.error ? 0 : row.now ? ORDER.indexOf(row.now.tone) : ORDER.length);
  return [...rows].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name))[0] ?? null;
}

function Rivertwice() {
  const { createElement: h, useEffect, useState } = globalThis.React;
  const { Badge, Box, Heading, HStack, Link, Text } = globalThis.ChakraUI;
  const [rows, setRows] = useState(null);
  useEffect(() => {
    let live = true, timer = 0, tag = "";
    async function ask() {
      try {
        const answer = await fetch(new URL("rivertwice/api/overview", document.baseURI), {
          credentials: "same-origin", cache: "no-store", headers: tag ? { "If-None-Match": tag } : {},
        });
        if (answer.ok) {
          tag = answer.headers.get("ETag") || "";
          const { pipelines } = await answer.json();
          if (live) setRows(pipelines);
        }
      } catch { /* the home page stays as it is; it is asked again */ }
      if (live) timer = setTimeout(ask, EVERY);
    }
    const look = () => { clearTimeout(timer); if (!document.hidden) ask(); };
    look();
    document.addEventListener("visibilitychange", look);
    return () => { live = false; clearTimeout(timer); document.removeEventListener("visibilitychange", look); };
  }, []);
  const worst = rows && worstOf(rows);
  if (!worst) return null;
  const tone = worst.error ? "bad" : worst.now?.tone ?? "none";
  const alike = rows.filter((row) => row.error || ["bad", "warn"].includes(row.now?.tone)).length;
  const place = new URL(`plugin/rivertwice/rivertwice/#/p/${encodeURIComponent(worst.name)}`, document.baseURI).href;
  const all = new URL("plugin/rivertwice", document.baseURI).href;
  return h(Box, { borderWidth: 1, borderRadius: "md", p: 4, "data-testid": "rivertwice-now" },
    h(HStack, { mb: 1, gap: 3, flexWrap: "wrap" },
      h(Heading, { size: "md" }, "rivertwice"),
      h(Badge, { colorPalette: COLOURS[tone] }, alike ? `${alike} of ${rows.length} need attention` : rows.some((row) => row.unread) ? "being read" : `${rows.length} with nothing to do`),
      h(Link, { href: all, ms: "auto" }, "All pipelines")),
    h(Text, null, h(Link, { href: place, fontWeight: "semibold" }, worst.name), ": ", worst.error || worst.now?.sentence || "no data yet"));
}

globalThis.AirflowPlugin = Rivertwice;
