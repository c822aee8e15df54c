// Light or dark, before anything is drawn: inside Airflow as Airflow is, else as Airflow's own switch was left, else as the system is.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  function above() {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null; // framed by another origin
    }
  }
  function isDark() {
    const frame = above();
    if (frame) return frame.classList.contains("dark");
    let chosen = null;
    try {
      chosen = localStorage.getItem("theme");
    } catch { /* storage is off */ }
    return chosen === "dark" || (chosen !== "light" && system.matches);
  }
  function apply() {
    document.documentElement.classList.toggle("dark", isDark());
    document.documentElement.classList.toggle("framed", above() !== null);
  }
  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  const frame = above();
  if (frame) new MutationObserver(apply).observe(frame, { attributes: true, attributeFilter: ["class"] });
})();
