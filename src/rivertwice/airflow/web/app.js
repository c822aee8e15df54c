// The frame: where we are, the header, and the page under it.
import { html, render, useEffect, useRef } from "./vendor/preact-htm.js";
import { followLinksOutside, nameOurPlace } from "./frame.js";
import { airflowRoot } from "./parts.js";
import { Overview } from "./overview.js";
import { Pipeline } from "./pipeline.js";
import { useRoute } from "./route.js";

function Header({ route }) {
  return html`<header class="top">
    <a class="brand" href="#/"><img src="web/icon.svg" alt="" width="20" height="20" />rivertwice</a>
    <nav aria-label="Place"><ol class="crumbs">
      <li>${route.page === "overview" ? html`<span aria-current="page">All pipelines</span>` : html`<a href="#/">All pipelines</a>`}</li>
      ${route.page === "pipeline" ? html`<li><span aria-current="page">${route.name}</span></li>` : null}
    </ol></nav>
    <a class="own-window" href=${location.href} target="_top" onClick=${(event) => { event.currentTarget.href = location.href; }}>Open in the whole window</a>
    <a class="to-airflow" href=${airflowRoot().href} target="_top">Airflow</a>
  </header>`;
}

function App() {
  const [route, go] = useRoute();
  const main = useRef(null), last = useRef(null);
  const place = `${route.page}:${route.name ?? ""}`;
  useEffect(() => {
    if (last.current !== null && last.current !== place) main.current.focus(); // a new page: its start is read, not the old link
    last.current = place;
  }, [place]);
  useEffect(nameOurPlace, [route]);
  function skip(event) {
    event.preventDefault(); // the hash is our address
    main.current.focus();
  }
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} route=${route} />
    <main id="main" tabindex="-1" ref=${main}>
      ${route.page === "pipeline"
        ? html`<${Pipeline} key=${route.name} route=${route} go=${go} />`
        : html`<${Overview} key="overview" route=${route} go=${go} />`}
    </main></div>`;
}

followLinksOutside();
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
