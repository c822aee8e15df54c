// One drawing of curves: uPlot, with the least and largest of each step as a band, marks, a readout and a table.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { clock, instant, isMissing } from "./format.js";
import { Table } from "./parts.js";
import uPlot from "./uplot.js";

export const LETTERS = { restart: "R", end: "E", savepoint: "S", head: "H", upgrade: "U", publication: "P" };
const MARK_TONE = { restart: "calm", end: "bad", savepoint: "good", head: "warn", upgrade: "warn", publication: "calm" };
const TOKENS = ["--calm", "--good", "--warn", "--bad", "--none"], DASHES = [[], [7, 3], [2, 3]];
const TIMES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, ...[2, 5, 10, 20, 50, 100, 365, 730, 1825, 3650].map((days) => days * 86400)];
const HEIGHT = 190, GAP = 13;
const cursors = uPlot.sync("rivertwice-health");
const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC");
export const styleOf = (place) => ({ token: TOKENS[place % TOKENS.length], dash: DASHES[Math.floor(place / TOKENS.length) % DASHES.length] });

// A sample of a line's colour and dashes.
export const Swatch = ({ place }) => {
  const { token, dash } = styleOf(place);
  return html`<svg class="swatch" viewBox="0 0 26 8" width="26" height="8" aria-hidden="true"><path d="M0 4H26" stroke=${`var(${token})`} stroke-width="2.5" stroke-dasharray=${dash.join(" ")} /></svg>`;
};

const ink = (token) => getComputedStyle(document.documentElement).getPropertyValue(token).trim();
const faint = (color) => (/^#[0-9a-f]{6}$/i.test(color) ? `${color}38` : color);

// 07:10, or 11-27 where a tick is a whole day
const stampOf = (tick, step) => {
  const text = new Date(tick * 1e3).toISOString();
  return step >= 86400 || text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
};

function drawMarks(chart, marks) {
  const { ctx, bbox } = chart, scale = devicePixelRatio;
  let last = -Infinity;
  ctx.save();
  ctx.font = `600 ${10 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  for (const mark of marks) {
    const x = Math.round(chart.valToPos(mark.seconds, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = ink(`--${MARK_TONE[mark.kind] || "none"}`);
    ctx.lineWidth = scale;
    ctx.setLineDash([3 * scale, 3 * scale]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (x - last > GAP * scale) {
      ctx.fillText(LETTERS[mark.kind] || "?", x, bbox.top - 4 * scale);
      last = x;
    }
  }
  ctx.restore();
}

function options({ width, lines, format, isTime, fromZero, marks, onCursor }) {
  const series = [{}], bands = [];
  for (const [place, line] of lines.entries()) {
    const { token, dash } = styleOf(place);
    const stroke = () => ink(token);
    if (line.most) {
      bands.push({ series: [series.length, series.length + 1], fill: () => faint(ink(token)) });
      series.push({ stroke: "transparent", width: 0, points: { show: false } }, { stroke: "transparent", width: 0, points: { show: false } });
    }
    series.push({ stroke, width: 1.6, dash, points: { size: 4, fill: stroke } });
  }
  const axis = { stroke: () => ink("--soft"), grid: { stroke: () => ink("--line"), width: 1 }, ticks: { stroke: () => ink("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width, height: HEIGHT, tzDate: utc, series, bands, legend: { show: false }, padding: [16, 8, 0, 0],
    scales: { y: { range: (chart, least, most) => (fromZero || isMissing(most) ? [0, isMissing(most) || most <= 0 ? 1 : most * 1.12] : [least, Math.max(most, least + 60)]) } },
    axes: [{ ...axis, values: (chart, ticks, number, space, step) => ticks.map((tick) => stampOf(tick, step)) },
      { ...axis, size: fromZero ? 64 : 112, values: (chart, ticks) => ticks.map(format), ...(isTime ? { incrs: TIMES } : {}) }],
    cursor: { sync: { key: cursors.key, setSeries: false }, y: false, drag: { setScale: false, x: false, y: false } },
    hooks: { draw: [(chart) => drawMarks(chart, marks)], setCursor: [(chart) => onCursor(chart.cursor.idx)] },
  };
}

// lines: { name, mean, least, most } with an array of values or null each; a line of largest values alone has only `mean`. `details`:
// lines that only the table shows.
export function Curve({ title, note, times, lines, details = [], marks, format, range, isTime = false, fromZero = true, wide = false }) {
  const box = useRef(null), readout = useRef(null), chart = useRef(null), [asTable, setAsTable] = useState(false), spot = useRef(null);
  const data = useMemo(() => [times, ...lines.flatMap((line) => (line.most ? [line.most, line.least, line.mean] : [line.mean]))], [times, lines]);
  const words = (index) => lines.map((line) => {
    const value = line.mean[index];
    const between = line.most && !isMissing(value) && line.most[index] !== line.least[index] ? ` (${format(line.least[index])} to ${format(line.most[index])})` : "";
    return `${lines.length > 1 ? `${line.name} ` : ""}${isMissing(value) ? "not known" : format(value)}${between}`;
  });
  const newest = useMemo(() => { // the last step in which anything is known
    for (let index = times.length - 1; index >= 0; index -= 1) if (lines.some((line) => !isMissing(line.mean[index]))) return index;
    return null;
  }, [times, lines]);
  const shown = (index) => (isMissing(index) ? "No data in this range." : `${clock(times[index] * 1000)}: ${words(index).slice(0, 6).join(", ")}`);
  const label = `${title}: ${newest === null ? "no data in this range" : lines.map((line) => `${line.name || title}, largest ${format(Math.max(0, ...(line.most || line.mean).filter((value) => !isMissing(value))))}`).slice(0, 6).join("; ")}`;
  const key = lines.map((line) => line.name).join("|");
  useEffect(() => {
    const made = new uPlot(options({ width: Math.max(box.current.clientWidth, 200), lines, format, isTime, fromZero, marks, onCursor: (index) => {
      spot.current = index;
      if (readout.current) readout.current.firstChild.data = shown(isMissing(index) ? newest : index);
    } }), data, box.current);
    chart.current = made;
    cursors.sub(made);
    const sizes = new ResizeObserver(([entry]) => made.setSize({ width: Math.max(Math.floor(entry.contentRect.width), 200), height: HEIGHT }));
    sizes.observe(box.current);
    const scheme = new MutationObserver(() => made.redraw(false, true));
    scheme.observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
    return () => { sizes.disconnect(); scheme.disconnect(); cursors.unsub(made); made.destroy(); chart.current = null; };
  }, [data, marks, key, range]);
  function pressed(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key], made = chart.current;
    if (!made || !(step || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const last = times.length - 1, from = isMissing(spot.current) ? newest ?? last : spot.current;
    const index = event.key === "Home" ? 0 : event.key === "End" ? last : Math.min(Math.max(from + step, 0), last);
    made.setCursor({ left: made.valToPos(times[index], "x"), top: 10 });
    spot.current = index;
  }
  const columns = [...lines, ...details];
  const known = asTable ? times.map((_, index) => index).filter((index) => lines.some((line) => !isMissing(line.mean[index]))).reverse() : [];
  return html`<section class="card curve ${wide ? "wide-card" : ""}">
    <div class="card-head"><h2>${title}</h2><span class="soft">${note}</span><span class="actions"><button type="button" class="quiet" aria-pressed=${asTable} onClick=${() => setAsTable(!asTable)}>${asTable ? "As a curve" : "As a table"}<span class="unseen"> ${title}</span></button></span></div>
    <p class="readout mono" ref=${readout} aria-live="off">${shown(newest)}</p>
    <div class=${asTable ? "unseen" : "plot"} ref=${box} tabindex=${asTable ? -1 : 0} role="img" aria-label=${label} onKeyDown=${pressed}
      onFocus=${() => readout.current.setAttribute("aria-live", "polite")} onBlur=${() => readout.current.setAttribute("aria-live", "off")}></div>
    ${lines.length > 1 && !asTable ? html`<ul class="legend">${lines.map((line, place) => html`<li key=${line.name}><${Swatch} place=${place} /> ${line.name}</li>`)}</ul>` : null}
    ${asTable ? html`<div class="tall"><${Table} caption=${`${title}, by step, newest first`} rowHead heads=${["From", ...columns.flatMap((line) => (line.most ? [{ text: `${line.name || "mean"}${line.name ? ", mean" : ""}`, num: true }, { text: "least", num: true }, { text: "largest", num: true }] : [{ text: line.name, num: true }]))]}
      rows=${known.map((index) => ({ key: times[index], cells: [instant(times[index] * 1000), ...columns.flatMap((line) => (line.most ? [line.mean, line.least, line.most] : [line.mean]).map((values) => (isMissing(values[index]) ? "–" : format(values[index]))))] }))} empty="No data in this range." /></div>` : null}
  </section>`;
}

// Move the cursor of all drawings to an instant.
export function pointAt(seconds) {
  const [made] = cursors.plots;
  if (made) made.setCursor({ left: made.valToPos(seconds, "x"), top: 10 });
}
