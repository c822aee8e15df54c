// Now: what is wrong, since when, which served numbers it touches, and what to do next. It stays in view.
import { html } from "./vendor/preact-htm.js";
import { Ago, AirflowLink, Icon, Instant, Light, Progress, Words, pipelineHref } from "./parts.js";

export const WORST = ["bad", "warn", "calm", "none", "good"];

export function Now({ name, now }) {
  if (!now) return null;
  return html`<section class="now t-${now.tone}" aria-label="Now">
    <${Icon} tone=${now.tone} />
    <div class="now-words">
      <p class="now-sentence" role="status"><${Words} text=${now.sentence} /></p>
      <p class="now-more">${now.since ? html`<span>Since <${Instant} at=${now.since} />, <${Ago} at=${now.since} />. </span>` : null}${now.touches ? html`<span><${Words} text=${now.touches} /> </span>` : null}${now.next ? html`<span class="now-next"><b>Next:</b> <${Words} text=${now.next} /></span>` : null}</p>
    </div>
    ${now.act ? html`<a class="button" href=${pipelineHref(name, now.act.tab, now.act.query || {})}>${now.act.text}</a>` : null}
  </section>`;
}

// What else is wrong or under way, the worst first.
export function Others({ name, others }) {
  return html`<ul class="others">${others.map((each) => html`<li key=${`${each.kind}${each.sentence}`} class="t-${each.tone}"><${Icon} tone=${each.tone} /><div><b><${Words} text=${each.sentence} /></b>
    ${each.since ? html`<span class="soft"> Since <${Instant} at=${each.since} />, <${Ago} at=${each.since} />.</span>` : null} <${Words} text=${each.touches} />${each.next ? html` <span>Next: <${Words} text=${each.next} />.</span>` : null}
    ${each.act ? html` <a href=${pipelineHref(name, each.act.tab)}>${each.act.text}</a>` : null}</div></li>`)}</ul>`;
}

export const LIGHTS = [["stream", "Stream"], ["data", "Data"], ["alerts", "Alerts"]];
export const Lights = ({ lights }) => html`<ul class="lights">${LIGHTS.filter(([key]) => lights[key]).map(([key, title]) => html`<li key=${key}><span class="soft">${title}</span> <${Light} ...${lights[key]} /></li>`)}</ul>`;

export function Running({ running, empty = "Nothing runs." }) {
  if (!running || !running.length) return html`<span class="soft">${empty}</span>`;
  return html`<ul class="running">${running.map((each) => html`<li key=${each.run || each.title}>
    ${each.dag ? html`<${AirflowLink} dag=${each.dag} run=${each.run}>${each.title}<//>` : html`<span>${each.title}</span>`}
    <span class="soft"> ${each.state}${each.since ? html` for <${Ago} at=${each.since} after="" />` : null}${each.total ? `, ${each.done} of ${each.total} tasks` : ""}</span>
    <${Progress} done=${each.done} total=${each.total} label=${`Progress of ${each.title}`} /></li>`)}</ul>`;
}
