// A repair that waits for a person, or that runs: what it does, and who decides.
import { html } from "./vendor/preact-htm.js";
import { ActButton } from "./acts.js";
import { number } from "./format.js";
import { Ago, AirflowLink, Facts } from "./parts.js";

export function RepairUnderWay({ repair, name, acts, act }) {
  const dag = `backfill__${name.replace("@", ".")}`, approve = acts.find("repair.approve");
  const preview = html`<div><${Facts} pairs=${[
    ["Served now", repair.before], ["Windows", number(repair.windows)], ["Records to read", repair.records === null ? "known once it is planned" : number(repair.records)],
    ["Found by", html`<code>${repair.reconcile}</code>`], ["Run", html`<${AirflowLink} dag=${dag} run=${repair.run} />`],
  ]} /><p class="soft">${repair.what}</p></div>`;
  if (repair.outcome === "running") return html`<div class="note t-calm repair-waits"><div><b>A repair runs</b>, approved by ${repair.by}: ${repair.what}. <${AirflowLink} dag=${dag} run=${repair.run}>Look at its run<//>.</div></div>`;
  return html`<div class="note t-warn repair-waits"><div><p><b>A repair waits for a person</b> since <${Ago} at=${repair.at} after="" />. The smallest backfill that cures this: ${repair.what}.</p>
    ${acts.known && !approve ? html`<p class="soft">You may look at it, and may not approve it.</p>` : null}
    <div class="buttons"><${ActButton} spec=${acts.find("repair.decline")} name=${name} act=${act} fields=${{ run: repair.run }}>${preview}<//>
    <${ActButton} spec=${approve} name=${name} act=${act} fields=${{ run: repair.run }} primary>${preview}<//></div></div></div>`;
}
