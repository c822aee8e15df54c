// Now: what is wrong, since when, which served numbers it touches, and what to do next. It stays in view.
import { html } from "./vendor/preact-htm.js";
import { ActButton } from "./acts.js";
import { clock, instant, pieces } from "./format.js";
import { Ago, AirflowLink, Copyable, Icon, Light, Progress, Words, pipelineHref } from "./parts.js";
import { serverNow } from "./poll.js";

export const WORST = ["bad", "warn", "calm", "none", "good"];

// For 35 min, since 07:08 UTC
export function Since({ at }) {
  if (!at) return null;
  const today = new Date(serverNow()).toISOString().slice(0, 10) === at.slice(0, 10);
  return html`<span>For <${Ago} at=${at} after="" />, since ${today ? clock(at) : instant(at, { seconds: false })}. </span>`;
}

// What to do next: each command can be copied.
const Next = ({ text }) => html`<span class="now-next"><b>Next:</b> ${pieces(text).map((part) => (!part.code ? part.text : part.text.startsWith("rivertwice ") ? html`<${Copyable} text=${part.text} />` : html`<code>${part.text}</code>`))}</span>`;

// The acts that may end a problem, as buttons; without the right to them, which right is needed. A command without a button says where it runs.
export function NextActs({ problem, name, acts, act }) {
  if (!acts?.known) return null;
  const found = problem.acts.map(acts.find).filter(Boolean);
  if (found.length) return found.map((spec) => html`<${ActButton} key=${spec.act} spec=${spec} name=${name} act=${act}><p class="soft"><${Words} text=${problem.text} /></p><//>`);
  if (problem.acts.length) return html`<span class="soft">No button: it needs the right to start ${problem.acts.join(", ")}, and its DAG.</span>`;
  return problem.next.includes("`rivertwice ") ? html`<span class="soft">No button: the command runs where the agent is.</span>` : null;
}

export function Now({ name, now, tab, acts, act }) {
  if (!now) return null;
  return html`<section class="now t-${now.tone}" aria-label="Now">
    <${Icon} tone=${now.tone} />
    <div class="now-words">
      <p class="now-sentence" role="status"><${Words} text=${now.sentence} /></p>
      <p class="now-more"><${Since} at=${now.since} />${now.touches ? html`<span><${Words} text=${now.touches} /> </span>` : null}${now.next ? html`<${Next} text=${now.next} />` : null}</p>
    </div>
    <div class="now-side"><${NextActs} problem=${now} name=${name} acts=${acts} act=${act} />${now.others?.length ? html`<a class="soft" href=${pipelineHref(name, "now")}>${now.others.length} more</a>` : null}
      ${now.act && now.act.tab !== tab ? html`<a class="button" href=${pipelineHref(name, now.act.tab, now.act.query || {})}>${now.act.text}</a>` : null}</div>
  </section>`;
}

// What else is wrong, each with its next step.
export const Others = ({ name, others, acts, act }) => html`<ul class="others">${others.map((each) => html`<li key=${each.sentence} class="t-${each.tone}"><${Icon} tone=${each.tone} /><div><b><${Words} text=${each.sentence} /></b>
  <p class="soft"><${Since} at=${each.since} />${each.touches ? html`<${Words} text=${each.touches} /> ` : null}${each.next ? html`<${Next} text=${each.next} /> ` : null}${each.act ? html`<a href=${pipelineHref(name, each.act.tab)}>${each.act.text}</a>` : null}</p>
  <p class="buttons"><${NextActs} problem=${each} name=${name} acts=${acts} act=${act} /></p></div></li>`)}</ul>`;

export const LIGHTS = [["stream", "Stream"], ["data", "Data"], ["alerts", "Alerts"]];
export const Lights = ({ lights }) => html`<ul class="lights">${LIGHTS.filter(([key]) => lights[key]).map(([key, title]) => html`<li key=${key}><span class="soft">${title}</span> <${Light} ...${lights[key]} /></li>`)}</ul>`;

export function Running({ running, empty = "Nothing runs." }) {
  if (!running || !running.length) return html`<span class="soft">${empty}</span>`;
  return html`<ul class="running">${running.map((each) => html`<li key=${each.run || each.title}>
    ${each.dag ? html`<${AirflowLink} dag=${each.dag} run=${each.run}>${each.title}<//>` : html`<span>${each.title}</span>`}
    <span class="soft"> ${each.state}${each.since ? html` for <${Ago} at=${each.since} after="" />` : null}${each.total ? `, ${each.done} of ${each.total} ${each.of || "tasks"}` : ""}</span>
    <${Progress} done=${each.done} total=${each.total} label=${`Progress of ${each.title}`} /></li>`)}</ul>`;
}
