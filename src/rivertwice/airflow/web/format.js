// How values are written. The same words as the command line prints; times in UTC, with the zone.
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FRACTION = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const isMissing = (value) => value === null || value === undefined;
export const number = (value) => (isMissing(value) ? "–" : FRACTION.format(value));
export const share = (value) => (isMissing(value) ? "–" : `${(100 * value).toFixed(1)} %`);
export const plural = (count, one, many = `${one}s`) => `${WHOLE.format(count)} ${count === 1 ? one : many}`;

export function bytes(value) {
  if (isMissing(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value, unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

// 2013-07-01 12:00:00 UTC, of an ISO text or of milliseconds
export function instant(value, { seconds = true, zone = true } = {}) {
  if (isMissing(value) || value === "") return "–";
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return String(value);
  const text = date.toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, seconds ? 19 : 16)}${zone ? " UTC" : ""}`;
}
export const clock = (value) => (isMissing(value) ? "–" : `${new Date(value).toISOString().slice(11, 19)} UTC`);

export function duration(seconds) {
  if (isMissing(seconds)) return "–";
  const size = Math.max(0, seconds);
  if (size < 90) return `${Math.round(size)} s`;
  if (size < 90 * 60) return `${Math.round(size / 60)} min`;
  if (size < 48 * 3600) return `${Math.round(size / 3600)} h`;
  return `${Math.round(size / 86400)} days`;
}

// Text with `commands` in backticks, as pieces: [{ text, code }]
export const pieces = (text) => String(text ?? "").split("`").map((part, index) => ({ text: part, code: index % 2 === 1 })).filter((part) => part.text);
