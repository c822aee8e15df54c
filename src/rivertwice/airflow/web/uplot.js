// uPlot, loaded when the first curve is drawn: `import uPlot from "../uplot.js"`.
function load() {
  return new Promise((resolve, reject) => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = new URL("./vendor/uPlot.min.css", import.meta.url);
    const script = document.createElement("script");
    script.src = new URL("./vendor/uPlot.iife.min.js", import.meta.url);
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("the curves' library vendor/uPlot.iife.min.js could not be loaded; reload the page"));
    document.head.append(sheet, script);
  });
}

export default await load();
