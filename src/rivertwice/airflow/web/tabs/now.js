// The facts behind the sentence, each with its age, what else is wrong, and what runs.
import { html } from "../vendor/preact-htm.js";
import { LIGHTS, Others, Running } from "../now.js";
import { Ago, Card, Empty, Icon, Light, Runbook, Stale, Table, Words } from "../parts.js";

const HEADS = [{ text: "State", hidden: true }, "Fact", { text: "Value", wide: true }, { text: "Age", wide: true }];
const cellsOf = (fact) => [
  html`<${Icon} tone=${fact.tone || "none"} />`, fact.name, html`<${Words} text=${fact.text} />`,
  html`${fact.at ? html`<${Ago} at=${fact.at} toS=${fact.to_s} />` : html`<span class="soft">–</span>`}<${Stale} why=${fact.stale} />`,
];

export default function Tab({ name, summary, acts, act }) {
  const facts = summary.facts || [], others = summary.now?.others || [];
  return html`<div class="sided">
    <div class="beside">
      <${Card} title="What else">${others.length ? html`<${Others} name=${name} others=${others} acts=${acts} act=${act} />` : html`<${Empty}>Nothing else is wrong.<//>`}<//>
      <${Card} title="Running now"><${Running} running=${summary.running} /><//>
    </div>
    <div>
      <${Card} title="Facts" note="each with the age of what is known"><${Table} stack caption="Facts, with their age" className="fact-table" rowHead=${1} heads=${HEADS} rows=${facts.map((fact) => ({ key: fact.name, cells: cellsOf(fact) }))} empty="Nothing is known yet." /><//>
      <${Card} title="About"><p class="soft">${summary.description}</p>${summary.runbook ? html`<p>Runbook: <${Runbook} text=${summary.runbook} /></p>` : null}
        <details><summary>What makes a light red, yellow, green or grey</summary><dl class="rules">${LIGHTS.filter(([key]) => summary.now?.lights[key]).map(([key, title]) => html`<div key=${key}><dt>${title} <${Light} tone=${summary.now.lights[key].tone} word=${summary.now.lights[key].word} /></dt><dd class="soft">${summary.now.lights[key].title}</dd></div>`)}</dl></details><//>
    </div>
  </div>`;
}
