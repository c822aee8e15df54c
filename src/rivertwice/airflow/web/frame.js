// Inside Airflow the page lies in a frame that may not navigate the window, and whose place the address bar does not show.
// Both are same-origin, so Airflow's own document does it: it follows our links, and its address names our place.
const PLACE = /\/plugin\/rivertwice(?=\/|$)/;

function above() {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null; // framed by another origin: links stay links
  }
}

// Let links to Airflow's pages (target "_top") open in the whole window.
export function followLinksOutside() {
  const frame = above();
  if (!frame) return;
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[target=_top]");
    if (!link || event.defaultPrevented) return;
    event.preventDefault();
    const theirs = frame.document.createElement("a");
    theirs.href = link.href;
    if (event.ctrlKey || event.metaKey || event.shiftKey) theirs.target = "_blank";
    frame.document.body.append(theirs);
    theirs.click();
    theirs.remove();
  });
}

// Airflow opens /plugin/rivertwice/rivertwice/#/p/NAME in this frame: so say where we are, for a reload and for a copied address.
export function nameOurPlace() {
  const frame = above();
  const found = frame && PLACE.exec(frame.location.pathname);
  if (!found) return;
  const start = frame.location.pathname.slice(0, found.index + found[0].length);
  const place = start + location.pathname + location.search + location.hash;
  frame.history.replaceState(frame.history.state, "", place);
}
