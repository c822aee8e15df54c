// The facts behind the sentence, each with its age, and what runs.
import { html } from "../vendor/preact-htm.js";
import { Others, Running } from "../now.js";
import { Ago, Card, Icon, Stale, Table, Words } from "../parts.js";

export default function Tab({ name, summary }) {
  const others = summary.now?.others || [];
  const facts = summary.facts || [];
  return html`<div class="grid">
    <p class="lead">${summary.description}</p>
    ${others.length ? html`<${Card} title="Also" wide note="what else is wrong, or under way"><${Others} name=${name} others=${others} /><//>` : null}
    <${Card} title="Facts" wide><${Table} caption="Facts, with their age" rowHead=${1} heads=${[{ text: "State", hidden: true }, "Fact", { text: "Value", wide: true }, "Age"]}
      rows=${facts.map((fact) => ({ key: fact.name, cells: [html`<${Icon} tone=${fact.tone || "none"} />`, fact.name, html`<${Words} text=${fact.text} />`, html`<span><${Ago} at=${fact.at} /><${Stale} why=${fact.stale} /></span>`] }))} empty="Nothing is known yet." /><//>
    <${Card} title="Running now"><${Running} running=${summary.running} /><//>
  </div>`;
}
