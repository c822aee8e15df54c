// Alerts of a pipeline: what lasts and what to do next, what a repair changed, what was over, who did what.
import { html } from "../vendor/preact-htm.js";
import { ActButton } from "../acts.js";
import { plural } from "../format.js";
import { Ago, AirflowLink, Card, Copyable, Empty, Facts, Instant, Light, Loaded, Note, Table, Tag, Words } from "../parts.js";
import { useData } from "../poll.js";
import { RepairUnderWay } from "../repair.js";

const TONES = { critical: "bad", warning: "warn" };
const OUTCOMES = { done: "good", waiting: "warn", declined: "none", unanswered: "none", unneeded: "good", failed: "bad", success: "good", answered: "good", running: "calm", queued: "calm" };
const words = (kind) => kind.replaceAll("_", " ");
const title = (alert) => `${words(alert.kind)}${alert.subject ? ` (${alert.subject})` : ""}`;

export default function Tab({ name, stamp, api, act, acts }) {
  const every = stamp ? 0 : 10_000;
  const state = useData(api("alerts"), stamp, { every }), people = useData(api("audit"), stamp, { every: 15_000 });
  return html`<div class="alerts"><${Loaded} state=${state}>${(data) => html`
    <h2 class="unseen">Open alerts</h2>
    ${data.open.length ? data.open.map((alert) => html`<${Open} key=${alert.id} alert=${alert} name=${name} acts=${acts} act=${act} />`)
      : html`<${Card} title="Nothing fires"><${Empty}>No alert of ${name} is open. A new one appears here, with what to do next.<//><//>`}
    ${data.repairs.length ? html`<${Repairs} repairs=${data.repairs} name=${name} />` : null}
    ${data.over.length ? html`<${Over} groups=${data.over} />` : null}
    <${Routes} routes=${data.routes} problem=${data.routes_problem} />`}<//>
    <${Card} title="Who did what" note="acts on this pipeline, from the page and from Airflow, newest first"><${Loaded} state=${people}>${(data) => html`<${People} acts=${data.acts} />`}<//><//></div>`;
}

function Open({ alert, name, acts, act }) {
  const known = alert.acknowledged, waits = alert.repair_under_way;
  const next = waits || alert.over_at ? [] : alert.acts.map(acts.find).filter(Boolean);
  return html`<section class="card alert-card" aria-label=${`${alert.severity}: ${title(alert)}`}>
    <div class="card-head"><h3 class="alert-title"><${Light} tone=${TONES[alert.severity]} word=${alert.severity} /> ${title(alert)}</h3>
      ${known ? html`<${Tag} word="acknowledged" />` : null}${alert.over_at ? html`<${Tag} word="resolved" />` : null}${alert.whole_home ? html`<span class="soft">concerns all pipelines of this home</span>` : null}
      <span class="actions soft">for <${Ago} at=${alert.since} after="" /></span></div>
    <p class="alert-message"><${Words} text=${alert.message} /></p>
    ${alert.over_at ? html`<${Note} tone="good">Over since <${Ago} at=${alert.over_at} after="" />: ${alert.resolution}. It is reported as over once that lasted.<//>` : null}
    ${known ? html`<${Note} tone="calm">${known.by} knows of it since <${Ago} at=${known.at} after="" />: ${known.why}<//>` : null}
    <${Facts} pairs=${[
      ["Served numbers", alert.meaning],
      ["Since", html`<${Instant} at=${alert.since} />`],
      ["Reported", html`<span>last <${Ago} at=${alert.seen_at} />${alert.times > 1 ? `; it came again ${plural(alert.times - 1, "time")} before it was over` : ""}</span>`],
      ["Sent to", `${alert.sent_to.join(", ") || "no receiver yet"}${alert.waits_for.length ? `; waits for ${alert.waits_for.join(", ")}` : ""}`],
      alert.dag && alert.run && ["Found by", html`<${AirflowLink} dag=${alert.dag} run=${alert.run}>${alert.dag}<//>`],
      alert.repair && !waits && !alert.over_at && ["Repair", alert.repair],
      alert.earlier_times ? ["Earlier", html`<span>${plural(alert.earlier_times, "time")}, last until <${Instant} at=${alert.earlier[0].until} seconds=${false} />: ${alert.earlier[0].resolution}</span>`] : null,
    ]} />
    ${waits ? html`<${RepairUnderWay} repair=${waits} name=${name} acts=${acts} act=${act} />` : null}
    <div class="buttons alert-next"><a class="button" href=${alert.place}>Look at its cause</a>
      ${next.map((spec) => html`<${ActButton} key=${spec.act} spec=${spec} name=${name} act=${act} primary><p class="soft">${alert.message}</p><//>`)}
      ${known || alert.over_at ? null : html`<${ActButton} spec=${acts.find("alert.acknowledge")} name=${name} act=${act} fields=${{ alert: alert.id }}><p class="soft">${title(alert)}: ${alert.message}</p><//>`}
    </div>
    ${!next.length && !waits && !alert.over_at ? html`<p class="next-command"><b>Next:</b> <${Copyable} text=${alert.command} /></p>` : null}
  </section>`;
}

const Repairs = ({ repairs, name }) => html`<${Card} title="Repairs" note="what was served before and after">
  <${Table} stack caption=${`Repairs of ${name}, newest first`} rowHead heads=${["Begun", "Outcome", { text: "Before", wide: true }, "After", "Decided by", "Backfill"]}
    rows=${repairs.map((each) => ({ key: each.run, cells: [
      html`<${AirflowLink} dag=${`backfill__${name.replace("@", ".")}`} run=${each.run}><${Instant} at=${each.at} seconds=${false} /><//>`,
      html`<span><${Tag} word=${each.outcome} tone=${OUTCOMES[each.outcome]} /><br /><span class="soft">${each.note}</span></span>`,
      each.what, each.after ?? "–", each.by || "–", each.backfill ? html`<code class="whole">${each.backfill}</code>` : "–"] }))} /><//>`;

const Over = ({ groups }) => html`<${Card} title="Over" note="by cause, the newest first">
  <${Table} stack caption="Alerts that are over, by cause" rowHead heads=${["Cause", { text: "Times", num: true }, "Last since", "Until", { text: "How it ended", wide: true }, "Acknowledged by"]}
    rows=${groups.map((group) => ({ key: group.kind + group.subject, cells: [title(group), group.times, html`<${Instant} at=${group.since} seconds=${false} />`,
      html`<${Instant} at=${group.until} seconds=${false} />`, group.resolution, group.earlier[0].acknowledged_by || "–"] }))} /><//>`;

const Routes = ({ routes, problem }) => html`<${Card} title="Routes" note="where alerts are sent">
  ${problem ? html`<${Note} tone="bad">${problem}<//>` : null}
  <${Table} stack caption="Routes of alerts" rowHead heads=${["Route", "To", "Severities", { text: "Waiting", num: true }, { text: "Failures", num: true }, "Last error"]}
    rows=${routes.map((route) => ({ key: route.route, cells: [route.route, route.to, route.severities.join(", "), route.waiting, route.failures, route.error || "–"] }))}
    empty="No route is configured, so alerts are not sent. Write alerts.yaml into the project (docs/howto-watch.md)." /><//>`;

const fields = (values) => Object.entries(values).map(([key, value]) => `${key} ${value}`).join(", ");
const People = ({ acts }) => html`<${Table} stack caption="Acts of people" rowHead=${1} heads=${["When", "Who", "What", { text: "Reason", wide: true }, "With", "Outcome"]}
  rows=${acts.map((each) => ({ key: `${each.at}${each.run}${each.act}`, cells: [
    html`<${Instant} at=${each.at} />`, each.by, html`<span>${each.dag ? html`<${AirflowLink} dag=${each.dag} run=${each.run}>${each.act}<//>` : each.act} <span class="soft">${each.how === "Airflow" ? "in Airflow" : ""}</span></span>`,
    each.reason || "–", fields(each.fields) || "–", html`<${Tag} word=${each.outcome} tone=${OUTCOMES[each.outcome]} />`] }))}
  empty="No person has acted on this pipeline yet." />`;
