// The grid of windows (columns) and keys (rows): only what is in view is drawn. One cell can be focused, arrows move, shift+arrows select.
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { instant, plural } from "./format.js";

export const LETTERS = { D: "DEFECT", N: "NOT_COMPARABLE", L: "LATE", O: "OPEN", A: "AGREES", "-": "UNJUDGED" };
export const WORDS = { DEFECT: "defect", NOT_COMPARABLE: "not comparable", LATE: "late", OPEN: "open", AGREES: "agrees", UNJUDGED: "not judged yet" };
const ORDER = ["DEFECT", "NOT_COMPARABLE", "LATE", "OPEN", "AGREES", "UNJUDGED"];
const LETTER_OF = Object.fromEntries(Object.entries(LETTERS).map(([letter, word]) => [word, letter]));
const CLASSES = { D: "bad", N: "none", L: "warn", O: "calm", A: "good", "-": "unjudged", " ": "blank" };
const CELL = 26, SPARE = 8, DAY = 86_400_000, HOUR = 3_600_000;

export const columnStart = (map, column) => map.start_ms + column * map.step_ms;
export const columnName = (map, column) => {
  const start = instant(columnStart(map, column), { seconds: map.step_ms % 60_000 !== 0 });
  if (map.is_window) return start;
  return `${start} to ${instant(columnStart(map, column + 1), { seconds: false })}`;
};

// What a column says of all its rows: its letter is that of the worst.
export function summaryOf(map, column) {
  const rows = {};
  for (const word of ORDER) if (map.columns[word]?.[column]) rows[word] = map.columns[word][column];
  const worst = ORDER.find((word) => rows[word]);
  return { letter: worst ? LETTER_OF[worst] : " ", rows, late: 0, reason: "" };
}

function cellOf(map, row, column) {
  if (row === 0) return summaryOf(map, column);
  const letter = map.letters[row - 1][column];
  return { letter, rows: null, late: 0, reason: "", ...map.cells[row - 1][column] };
}

export function describeRows(rows) {
  const parts = ORDER.filter((word) => rows[word]).map((word) => `${rows[word]} ${WORDS[word]}`);
  return parts.join(", ");
}

function labelOf(map, row, column, changed, names) {
  const cell = cellOf(map, row, column), key = row === 0 ? "all keys" : map.keys[row - 1].label;
  if (!names.has(column)) names.set(column, columnName(map, column));
  const head = `${names.get(column)}, ${key}: `;
  if (cell.letter === " ") return `${head}no row`;
  const total = cell.rows ? Object.values(cell.rows).reduce((sum, count) => sum + count, 0) : 1;
  const word = WORDS[LETTERS[cell.letter]];
  let text = cell.rows && (row === 0 || total > 1) ? `${word}; ${describeRows(cell.rows)}` : word;
  if (cell.reason) text += `, ${cell.reason}`;
  return head + text + (changed.has(column) ? `; changed after the verdict` : "");
}

// Two lines of heads: the group once where it begins, and the part of it that the column is.
function headOf(map, column) {
  const start = new Date(columnStart(map, column)), text = start.toISOString();
  if (map.step_ms >= DAY) return { group: text.slice(0, 7), part: text.slice(8, 10) };
  if (map.step_ms >= HOUR) return { group: text.slice(0, 10), part: text.slice(11, 13) };
  return { group: text.slice(0, 16).replace("T", " "), part: text.slice(map.step_ms % 60_000 ? 17 : 14, map.step_ms % 60_000 ? 19 : 16) };
}

export function Heatmap({ map, label, selection, onSelect, onOpen }) {
  const box = useRef(null), drag = useRef(null), wants = useRef(false);
  const [active, setActive] = useState({ row: 0, column: Math.max(0, map.count - 1) });
  const [view, setView] = useState({ left: 0, width: 1200 });
  const changed = useMemo(() => new Set([...map.run.published, ...map.run.read]), [map]);
  const names = useMemo(() => new globalThis.Map(), [map]); // of the columns, each made once
  const rows = map.keys.length + 1;
  const row = Math.min(active.row, rows - 1), column = Math.min(active.column, Math.max(0, map.count - 1));

  const look = useCallback(() => {
    const node = box.current;
    if (node) setView((old) => (old.left === node.scrollLeft && old.width === node.clientWidth ? old : { left: node.scrollLeft, width: node.clientWidth }));
  }, []);
  useLayoutEffect(() => {
    box.current.scrollLeft = box.current.scrollWidth; // the newest windows
    look();
  }, [map.start_ms, map.count, map.step_ms]);
  useEffect(() => {
    window.addEventListener("resize", look);
    return () => window.removeEventListener("resize", look);
  }, [look]);
  useLayoutEffect(() => {
    if (!wants.current) return;
    wants.current = false;
    const names = nameWidth(box.current), left = column * CELL, node = box.current;
    if (left < node.scrollLeft) node.scrollLeft = left;
    else if (left + CELL > node.scrollLeft + node.clientWidth - names) node.scrollLeft = left + CELL - node.clientWidth + names;
    look();
    requestAnimationFrame(() => node.querySelector('[data-active="true"]')?.focus({ preventScroll: false }));
  }, [row, column]);

  const first = Math.max(0, Math.floor(view.left / CELL) - SPARE);
  const last = Math.min(map.count, Math.ceil((view.left + view.width) / CELL) + SPARE);
  const shown = [];
  for (let each = first; each < last; each += 1) shown.push(each);
  if (!shown.includes(column) && map.count) shown.push(column); // the focus stays where it is
  const isChosen = (each) => selection !== null && each >= selection[0] && each <= selection[1];

  function move(nextRow, nextColumn, event) {
    const to = { row: Math.max(0, Math.min(rows - 1, nextRow)), column: Math.max(0, Math.min(map.count - 1, nextColumn)) };
    if (event.shiftKey && to.column !== column) {
      const anchor = drag.current?.anchor ?? column;
      drag.current = { anchor };
      onSelect([Math.min(anchor, to.column), Math.max(anchor, to.column)]);
    } else if (!event.shiftKey) drag.current = null;
    wants.current = true;
    setActive(to);
  }
  function pressed(event) {
    const page = Math.max(1, Math.floor(view.width / CELL) - 4);
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -page], PageDown: [0, page] };
    const step = steps[event.key];
    if (step) move(row + step[0], column + step[1], event);
    else if (event.key === "Home") move(event.ctrlKey ? 0 : row, 0, event);
    else if (event.key === "End") move(event.ctrlKey ? rows - 1 : row, map.count - 1, event);
    else if (event.key === "Enter") onOpen(row - 1, column);
    else if (event.key === " ") onSelect(isChosen(column) ? null : [column, column]);
    else if (event.key === "Escape" && selection) { drag.current = null; onSelect(null); } else return;
    event.preventDefault();
  }
  const placeOf = (event) => {
    const cell = event.target.closest?.("[data-column]");
    return cell ? { row: Number(cell.dataset.row), column: Number(cell.dataset.column) } : null;
  };
  function down(event) {
    const at = placeOf(event);
    if (!at || event.button !== 0 || event.pointerType === "touch") return;
    drag.current = { anchor: event.shiftKey ? column : at.column, from: at, moved: event.shiftKey };
    if (event.shiftKey) onSelect([Math.min(column, at.column), Math.max(column, at.column)]);
    setActive({ row: Math.max(0, at.row), column: at.column });
  }
  function over(event) {
    const at = placeOf(event);
    if (at && at.row >= 0 && !event.target.title) event.target.title = event.target.getAttribute("aria-label") || ""; // only where it is read
    if (!drag.current?.from || !at || !(event.buttons & 1)) return;
    if (at.column !== drag.current.anchor) drag.current.moved = true;
    if (drag.current.moved) onSelect([Math.min(drag.current.anchor, at.column), Math.max(drag.current.anchor, at.column)]);
  }
  function clicked(event) {
    const at = placeOf(event), moved = drag.current?.moved;
    drag.current = null;
    if (!at || moved) return;
    setActive({ row: Math.max(0, at.row), column: at.column });
    if (at.row < 0) { // a head: on a touch screen, the second one ends the selection
      const begun = selection !== null && selection[0] === selection[1] ? selection[0] : null;
      onSelect(begun === null ? [at.column, at.column] : begun === at.column ? null : [Math.min(begun, at.column), Math.max(begun, at.column)]);
    } else onOpen(at.row - 1, at.column);
  }

  let group = null;
  const heads = shown.slice().sort((a, b) => a - b).map((each) => {
    const head = headOf(map, each), isFirst = head.group !== group;
    group = head.group;
    return html`<div role="columnheader" key=${each} aria-colindex=${each + 2} aria-label=${columnName(map, each)} title=${columnName(map, each)}
      class="heat-head ${isFirst ? "begins" : ""} ${isChosen(each) ? "chosen" : ""}" data-row="-1" data-column=${each} style=${{ left: `${each * CELL}px` }}>
      <span class="heat-group" aria-hidden="true">${isFirst ? head.group : ""}</span><span>${head.part}</span></div>`;
  });
  const line = (number) => html`<div role="row" key=${number ? map.keys[number - 1].key : ""} class="heat-row ${number ? "" : "heat-all"}" aria-rowindex=${number + 2}>
    <div role="rowheader" aria-colindex="1" class="heat-name" title=${number ? map.keys[number - 1].label : "all keys"}>${number ? map.keys[number - 1].label : "all keys"}</div>
    <div class="heat-cells" role="presentation" style=${{ width: `${map.count * CELL}px` }}>${shown.map((each) => {
      const cell = cellOf(map, number, each), isActive = number === row && each === column;
      const text = labelOf(map, number, each, changed, names);
      return html`<div role="gridcell" key=${each} aria-colindex=${each + 2} aria-label=${text} aria-selected=${isChosen(each) ? "true" : "false"}
        tabindex=${isActive ? 0 : -1} data-active=${isActive ? "true" : null} data-row=${number} data-column=${each}
        class="heat-cell c-${CLASSES[cell.letter]} ${changed.has(each) && cell.letter !== " " ? "changed" : ""} ${isChosen(each) ? "chosen" : ""}" style=${{ left: `${each * CELL}px` }}>${cell.letter === " " ? "" : cell.letter}</div>`;
    })}</div></div>`;

  return html`<div class="heat" ref=${box} onScroll=${look} onKeyDown=${pressed} onPointerDown=${down} onPointerOver=${over} onClick=${clicked}
    role="grid" aria-label=${label} aria-rowcount=${rows + 1} aria-colcount=${map.count + 1} aria-multiselectable="true">
    <div role="row" class="heat-row heat-heads" aria-rowindex="1"><div role="columnheader" aria-colindex="1" class="heat-name">${plural(map.count, map.is_window ? "window" : map.level)}</div>
      <div class="heat-cells" role="presentation" style=${{ width: `${map.count * CELL}px` }}>${heads}</div></div>
    ${Array.from({ length: rows }, (_, number) => line(number))}
  </div>`;
}

function nameWidth(node) {
  const name = node.querySelector(".heat-name");
  return name ? name.offsetWidth : 0;
}

export const Legend = () => html`<ul class="legend" aria-label="Letters">${Object.entries(LETTERS).map(([letter, word]) => html`<li key=${letter}><span class="heat-cell c-${CLASSES[letter]}" aria-hidden="true">${letter}</span> ${letter === "-" ? "" : html`<span class="unseen">${letter}: </span>`}${WORDS[word]}</li>`)}
  <li><span class="heat-cell c-good changed" aria-hidden="true">A</span> published or read after the verdict</li><li>blank: no row</li></ul>`;
