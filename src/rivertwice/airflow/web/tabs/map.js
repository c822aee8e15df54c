// The map around one pipeline: what flows into it, and to whom its results go.
import { html } from "../vendor/preact-htm.js";
import { FlowMap } from "../map.js";

export default function Tab({ name }) {
  return html`<${FlowMap} of=${name} />`;
}
