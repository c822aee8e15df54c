// Now: what is wrong, since when, which served numbers it touches, and what to do next. It stays in view.
import { html } from "./vendor/preact-htm.js";
import { clock, instant } from "./format.js";
import { Ago, AirflowLink, Icon, Light, Progress, Words, pipelineHref } from "./parts.js";
import { serverNow } from "./poll.js";

export const WORST = ["bad", "warn", "calm", "none", "good"];

// For 35 min, since 07:08 UTC
export function Since({ at }) {
  if (!at) return null;
  const today = new Date(serverNow()).toISOString().slice(0, 10) === at.slice(0, 10);
  return html`<span>For <${Ago} at=${at} after="" />, since ${today ? clock(at) : instant(at, { seconds: false })}. </span>`;
}

export function Now({ name, now, tab }) {
  if (!now) return null;
  return html`<section class="now t-${now.tone}" aria-label="Now">
    <${Icon} tone=${now.tone} />
    <div class="now-words">
      <p class="now-sentence" role="status"><${Words} text=${now.sentence} /></p>
      <p class="now-more"><${Since} at=${now.since} />${now.touches ? html`<span><${Words} text=${now.touches} /> </span>` : null}${now.next ? html`<span class="now-next"><b>Next:</b> <${Words} text=${now.next} /></span>` : null}</p>
    </div>
    <div class="now-side">${now.others?.length ? html`<a class="soft" href=${pipelineHref(name, "now")}>${now.others.length} more</a>` : null}
      ${now.act && now.act.tab !== tab ? html`<a class="button" href=${pipelineHref(name, now.act.tab, now.act.query || {})}>${now.act.text}</a>` : null}</div>
  </section>`;
}

// What else is wrong, each with its next step.
export const Others = ({ name, others }) => html`<ul class="others">${others.map((each) => html`<li key=${each.sentence} class="t-${each.tone}"><${Icon} tone=${each.tone} /><div><b><${Words} text=${each.sentence} /></b>
  <p class="soft"><${Since} at=${each.since} />${each.touches ? html`<${Words} text=${each.touches} /> ` : null}${each.next ? html`<span>Next: <${Words} text=${each.next} />. </span>` : null}${each.act ? html`<a href=${pipelineHref(name, each.act.tab)}>${each.act.text}</a>` : null}</p></div></li>`)}</ul>`;

export const LIGHTS = [["stream", "Stream"], ["data", "Data"], ["alerts", "Alerts"]];
export const Lights = ({ lights }) => html`<ul class="lights">${LIGHTS.filter(([key]) => lights[key]).map(([key, title]) => html`<li key=${key}><span class="soft">${title}</span> <${Light} ...${lights[key]} /></li>`)}</ul>`;

export function Running({ running, empty = "Nothing runs." }) {
  if (!running || !running.length) return html`<span class="soft">${empty}</span>`;
  return html`<ul class="running">${running.map((each) => html`<li key=${each.run || each.title}>
    ${each.dag ? html`<${AirflowLink} dag=${each.dag} run=${each.run}>${each.title}<//>` : html`<span>${each.title}</span>`}
    <span class="soft"> ${each.state}${each.since ? html` for <${Ago} at=${each.since} after="" />` : null}${each.total ? `, ${each.done} of ${each.total} ${each.of || "tasks"}` : ""}</span>
    <${Progress} done=${each.done} total=${each.total} label=${`Progress of ${each.title}`} /></li>`)}</ul>`;
}
