// Dead letters and late records of a pipeline.
import { html } from "../vendor/preact-htm.js";
import { Empty } from "../parts.js";

export default function Tab() {
  return html`<${Empty}>Nothing is shown here yet.<//>`;
}
