// What is said when the server cannot be reached: the last data stay, and it is said from when they are.
import { html } from "./vendor/preact-htm.js";
import { clock } from "./format.js";
import { Ago, Icon, airflowRoot } from "./parts.js";

export function Banner({ state }) {
  if (!state.error) return html`<div class="banner-place" role="alert"></div>`;
  const from = state.at ? ` What you see is from ${clock(state.at)}; it may have changed since.` : "";
  return html`<div class="banner-place" role="alert"><div class="banner"><${Icon} tone="bad" /><div><b>${state.error}</b>${from}
    ${state.status === 401 ? html` <a href=${airflowRoot().href} target="_top">Log in</a>, then reload this page.` : " This page asks again by itself."}</div></div></div>`;
}

export const Checked = ({ state }) => (state.at ? html`<span class="soft checked">Checked <${Ago} at=${new Date(state.at).toISOString()} /></span>` : null);
